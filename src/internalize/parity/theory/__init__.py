"""Algorithm 1 at finite n: exact population moments, predicted samples, and when a trained layer stays frozen.

Imports `parity.task` and `parity.model`. Start with `population.py`.
"""
