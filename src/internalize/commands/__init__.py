"""The subcommands: one file each, a dataclass that is the command line and does the work when called.

Heavy imports are inside the calls, so that ``--help`` is quick.
"""
