"""Training with a Hugging Face Trainer: collator, callback, losses, models.

Imports `lm.data`, `lm.stages` and `storage`. Start with `internalization.py`, which puts the pieces together. `train.py` is
`lm train`.
"""
