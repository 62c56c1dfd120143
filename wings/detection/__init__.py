"""Boxes with a class, and a class for each pixel: what such outputs mean, and their metrics."""
