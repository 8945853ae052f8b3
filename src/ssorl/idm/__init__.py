"""Inverse dynamics models: the paper's, a better one, self-training, and labels with their uncertainty."""
