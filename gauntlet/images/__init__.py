"""From image bytes to the inputs of a model."""
