"""What a trained model answers, and what training costs: `lm eval`, `lm plan` and `lm compare`.

Imports `lm.training` and `parallel`. Start with `evaluate.py`.
"""
