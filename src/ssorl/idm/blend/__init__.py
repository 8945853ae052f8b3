"""The default inverse dynamics model: a weighted mean of models of different families."""
