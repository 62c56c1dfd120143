"""PyTorch networks: build, save, load, train, predict."""
