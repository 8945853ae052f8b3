"""Training of many runs at once: the engine, its tables, memory, checkpoints and metrics."""
