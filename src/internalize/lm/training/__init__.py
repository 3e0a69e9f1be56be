"""Training with a Hugging Face Trainer: collator, callback, losses, models.

Imports `lm.data`, `lm.stages` and `storage`. Start with `internalization.py`, which assembles the parts. `train.py` is
`lm train`.
"""
