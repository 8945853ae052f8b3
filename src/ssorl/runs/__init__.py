"""Runs of `ssorl run`, each in a folder of its own."""
