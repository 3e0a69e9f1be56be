"""The evaluation of trained models, the cost of training, and comparisons.

These are `lm eval`, `lm ask`, `lm plan` and `lm compare`.

Imports `lm.training` and `parallel`. Start with `evaluate.py`.
"""
