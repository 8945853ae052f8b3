"""Trained policies: rollouts, files, estimates of value, videos and export."""

EPISODES = 30  # played by each policy unless the caller gives another number; studies pin theirs (study/scales.py)
