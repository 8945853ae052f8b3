"""Studies: grids of results, each computed once and stored; the paper's figures and tables are studies by name."""
