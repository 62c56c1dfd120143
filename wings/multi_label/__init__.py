"""Any number of classes per sample, or one for each of its positions: what such outputs mean, and their metrics."""
