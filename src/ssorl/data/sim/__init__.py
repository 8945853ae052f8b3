"""Datasets collected here: behaviour policies, mazes, and the table of datasets."""
