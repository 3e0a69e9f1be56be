"""The figures, one module each. A module turns a tree, runs or rows into a `Drawing`, which saves SVG and PDF."""
