"""Simulated datasets: behaviour policies, their training, and the collection of trajectories."""
