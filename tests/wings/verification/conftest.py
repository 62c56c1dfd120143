"""A bundle that a test may change."""

from bundles import folder

__all__ = ["folder"]
