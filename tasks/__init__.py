"""The house of a model: pure stages that return reports, and the values that travel between them."""
