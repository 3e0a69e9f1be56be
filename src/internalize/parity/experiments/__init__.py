"""Studies of many runs: curricula compared, ablations, sweeps and phase diagrams.

Each module describes its jobs and how its rows are computed; `internalize.parallel` runs the jobs. Imports all of
`parity`, `storage` and `parallel`, and nothing of `report`. Start with `jobs.py`.
"""
