"""Flax networks: build, save, load, train, predict."""
