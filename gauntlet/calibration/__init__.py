"""Activation ranges for static quantization."""
