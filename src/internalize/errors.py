"""What a user did wrong, told apart from what we did wrong."""


class InputError(ValueError):
    """The request or its files are wrong: the message names the value, the limit and the reason.

    The command line turns this, and only this, into one line and exit status 2. A plain ``ValueError``
    out of a library stays a traceback, because it is then our bug.
    """
