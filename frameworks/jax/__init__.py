"""JAX functions that users bring, with their parameters."""
