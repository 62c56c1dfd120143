"""Outlying channels before matrix products, moved into the weights; found by its entry point."""
