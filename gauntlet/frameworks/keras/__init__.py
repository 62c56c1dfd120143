"""Keras models: how TensorFlow is started, how a network is built and kept, and what a model answers."""
