"""A text that is read from scores of characters by position: what such outputs mean, and their metrics."""
