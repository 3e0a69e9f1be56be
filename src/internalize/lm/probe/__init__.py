"""Where each hidden step can be read in a model, and why a stage stalls: `lm probe`.

Imports `lm.evaluation`. Start with `probe.py`.
"""
