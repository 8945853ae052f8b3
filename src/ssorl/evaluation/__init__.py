"""Trained policies: rollouts, files, off-policy evaluation, videos and export."""

EPISODES = 30  # evaluation episodes of each policy by default; studies set their own number (study/scales.py)
