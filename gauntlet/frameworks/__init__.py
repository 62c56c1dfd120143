"""Training frameworks: build, save, load and run their models."""
