"""Any number of classes per sample: what such outputs mean, and their metrics."""
