"""Error metrics and paired comparisons of outputs."""
