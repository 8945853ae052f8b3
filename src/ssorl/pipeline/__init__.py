"""Algorithm 1 of the paper: its stages, its plan, its hooks, and the notebook API."""
