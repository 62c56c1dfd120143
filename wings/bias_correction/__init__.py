"""Biases of quantized layers that take out what rounding shifts their outputs by."""
