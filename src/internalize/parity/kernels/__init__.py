"""Loops over bits: 64 samples per word, in NumPy and, where there is a C compiler, in `native.c`.

Imports nothing of ours but the errors. Start with `bitmatrix.py`.
"""
