"""Algorithm 1 of the paper: its plan, its stages, its hooks, and the notebook API."""
