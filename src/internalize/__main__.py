"""The `internalize` command, also as ``python -m internalize`` for launchers such as torchrun that take a module."""

from typing import NoReturn

from internalize.commands.standard_streams import protect, settle_environment


def main() -> NoReturn:
    """Protect streams and status first: what is imported next may not find memory."""
    settle_environment()
    protect()

    from internalize.commands.cli import run

    run()


if __name__ == "__main__":
    main()
