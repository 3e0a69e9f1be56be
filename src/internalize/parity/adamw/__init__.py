"""AdamW through the stages of a curriculum, many seeds at once (section 4).

Imports the task and the model. Start with `train.py`, which stores the runs; `ensemble.py` trains them.
"""
