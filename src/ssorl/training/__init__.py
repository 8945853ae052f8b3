"""The engine that trains many agents at once, its tables, memory, checkpoints and metrics."""
