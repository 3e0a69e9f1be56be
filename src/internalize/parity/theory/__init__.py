"""What finite n does to Algorithm 1: exact population moments, predicted samples, and when a trained layer stays frozen.

Imports `parity.task` and `parity.model`. Start with `population.py`.
"""
