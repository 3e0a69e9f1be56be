"""Algorithm 1: one quantized gradient step per stage, and the counting kernels that make it fast.

Imports the task, the model and the theory. Start with `solve.py`. `weight_layouts.py` has the layouts of the weights,
`recovery.py` decides whether a layer is recovered, and `solve_runs.py` keeps a run in its folder.
"""
