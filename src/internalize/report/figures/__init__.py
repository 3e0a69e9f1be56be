"""The figures, one module each: take a tree, runs or rows and return a `Drawing`, which writes itself as SVG and PDF."""
