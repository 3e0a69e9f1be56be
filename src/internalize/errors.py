"""What a user did wrong, told apart from what we did wrong."""

from typing import Final

WRONG: Final = 2
"""Exit status of a request that is refused."""
BUG: Final = 70
"""Exit status of a bug of ours."""
INTERRUPTED: Final = 130
"""Exit status after Ctrl-C or SIGTERM, with everything saved."""


class InputError(ValueError):
    """The request or its files are wrong: the message names the value, the limit and the reason.

    The command line turns this, and only this, into one line and exit status 2. A plain ``ValueError``
    out of a library stays a traceback, because it is then our bug.
    """
