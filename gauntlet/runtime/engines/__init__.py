"""The runtimes that a worker can open a model with, one file each."""
