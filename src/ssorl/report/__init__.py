"""Pictures and pages. Reads data and results; knows nothing of training."""
