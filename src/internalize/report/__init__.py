"""The page of `internalize paper`: the runs behind it, the paper's claims, figures, tables and explorers.

Imports everything but `commands`. Start with `reproduce.py`, which makes the runs and calls `page.py`. `results/` holds
stored results that take hours to compute, `figures/` has one module per figure, and `templates/` is the page itself.
"""
