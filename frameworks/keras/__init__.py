"""Keras models: start TensorFlow; build, save, load, train, predict."""
