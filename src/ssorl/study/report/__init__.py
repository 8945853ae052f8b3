"""The page of a study, and its figures and tables for papers."""
