"""The `internalize` command, also as ``python -m internalize`` for launchers such as torchrun that take a module."""

from typing import NoReturn

from internalize.commands.standard_streams import protect, settle_environment


def main() -> NoReturn:
    """Run the command line. Streams and status are protected first, because a later import may run out of memory."""
    settle_environment()
    protect()

    from internalize.commands.cli import run

    run()


if __name__ == "__main__":
    main()
