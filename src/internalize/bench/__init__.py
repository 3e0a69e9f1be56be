"""Speed and memory as ratios of one run: `internalize bench`.

`plain.py` is what a user would have written without this package. It is the baseline of two ratios, and does not
import the package. Start with `run.py`.
"""
