"""Parallel jobs on local processes or a Ray cluster, with progress, interruption and crash recovery.

Imports only the root of the package and `storage`. Start with `pool.py`.
"""
