"""The command line. `cli.py` finds the subcommand, and each subcommand has its own file.

A subcommand is a dataclass: its fields are the options, and calling it does the work. It inherits shared options from
`common_options.py`. Heavy imports are inside the calls, so that ``--help`` is quick. May import everything; nothing
imports `commands`.
"""
