"""Studies: grids of results, each computed once and kept; every figure and table of the paper is one by name."""
