"""`lm probe`: in which layer each hidden step can be read, and why a stage stalls.

Imports `lm.evaluation`. Start with `probe.py`.
"""
