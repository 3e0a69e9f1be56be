"""Faults that commands must survive (docs/reliability.md): kills, failing disks, broken files, absurd command lines.

Start at `FAMILIES` in `__main__.py`: a new family is one entry there and one function that yields an `Outcome` per fault.
`child_process.py` runs commands in processes on a disk that fails (`failing_disk.c`), `harness.py` in this process.
"""
