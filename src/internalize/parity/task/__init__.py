"""The task of section 2.1: the tree over a secret set, the samples, and what each stage pads and supervises.

Imports only the root of the package. Start with `tree.py`: it alone converts between the paper's counting from 1 and Python's
counting from 0. Samples are drawn and counted 64 per word: `bitmatrix.py`, with its loops in `native.c` where there is a compiler.
"""
