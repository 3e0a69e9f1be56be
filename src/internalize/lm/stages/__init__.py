"""Tokenization of text, removal of steps at each stage, and the schedule of stages.

Imports `lm.data`. Start with `chains.py`, then `removal.py` (which tokens a stage hides) and `schedule.py` (when it
ends).
"""
