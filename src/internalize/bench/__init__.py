"""`internalize bench`: the package against the machine and against what one would write without it, as ratios of one run."""
