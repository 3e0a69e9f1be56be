"""The task of section 2.1: the tree over a secret set, the samples, and what each stage pads and supervises.

Imports only the root of the package. Start with `tree.py`: it alone converts between the paper's counting from 1 and
Python's counting from 0. Samples are packed 64 to a word (`bitmatrix.py`); `native.c` has the inner loops for machines
with a C compiler.
"""
