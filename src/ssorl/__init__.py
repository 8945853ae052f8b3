"""Semi-supervised offline reinforcement learning with action-free trajectories (arXiv 2210.06518)."""

__version__ = "0.1.0"
