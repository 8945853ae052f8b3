"""Helpers of the tests: limits for waiting, kills at counted moments, processes that meet, campaigns."""
