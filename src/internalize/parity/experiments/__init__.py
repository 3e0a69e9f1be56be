"""Many runs of the parity wing: curricula compared, ablations, sweeps and phase diagrams.

Each module describes what to run and how its rows are computed; `internalize.parallel` runs the jobs. Imports all of `parity`,
`storage` and `parallel`, and nothing of `report`. Start with `jobs.py`.
"""
