"""The outer step: how contributions are merged, and which are outliers (paper 3.4 to 3.6)."""
