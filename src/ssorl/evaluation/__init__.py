"""Trained policies: rollouts, files, estimates of value, videos and export."""
