"""Report pages and figures, made from data and results alone; nothing here imports training."""
