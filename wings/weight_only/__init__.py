"""The recipe `weight-only`: weights of matrix products in 8 or 4 bits, and all else in float."""
