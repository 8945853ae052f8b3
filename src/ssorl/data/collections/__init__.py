"""Named datasets: `builtin/...` and `d4rl/...`."""
