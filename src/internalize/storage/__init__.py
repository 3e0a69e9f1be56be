"""Files: run folders, the store of a sweep, rows of comparisons. Files are written atomically and nothing is pickled.

Imports only the root of the package. Start with `runs.py`; docs/contract.md fixes what the files hold.
"""
