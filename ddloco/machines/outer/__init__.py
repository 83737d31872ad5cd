"""The outer step: merging contributions, and detecting outliers (paper 3.4 to 3.6)."""
