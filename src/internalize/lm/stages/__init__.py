"""From text to tokens, what a stage leaves of a chain, and when the next stage begins.

Imports `lm.data`. Start with `chains.py`, then `removal.py` (which tokens a stage hides) and `schedule.py` (when it ends).
"""
