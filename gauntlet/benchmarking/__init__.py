"""The interleaved benchmark and its statistics."""
