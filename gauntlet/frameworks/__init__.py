"""Trained models in their own framework: how to build one, save one, and get it back."""
