"""``python -m internalize``: the command, for launchers such as torchrun that take a module."""

from internalize.commands.cli import run

if __name__ == "__main__":
    run()
