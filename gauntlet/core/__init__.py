"""Values that travel between stages, and what they are made of."""
