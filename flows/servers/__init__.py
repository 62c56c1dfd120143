"""Prefect and MLflow servers on this machine."""
