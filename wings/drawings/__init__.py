"""Drawings of a report: speed-ups, accuracy over latency and size, the training, and the times of operators."""
