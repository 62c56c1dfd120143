"""Numbers, rankings, quantiles, and several outputs with labels of their own."""
