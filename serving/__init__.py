"""Serves a bundle over HTTP; it imports only the library, and installs without Prefect, MLflow and PyTorch."""
