"""A vector per sample, whose neighbors share its class: what such an output means, and its metrics."""
