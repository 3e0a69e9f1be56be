"""The model of Definition 3: a slow form as printed, and faster forms that are tested against it.

Imports `parity.task`. Start with `literal.py` (the reference, in float64), then `transformer.py` (block form and
level form). `link`, `mask`, `gates` and `loss` are the parts that the paper names, and `relaxed.py` learns some of
them. `cot.py` is explicit CoT.
"""
