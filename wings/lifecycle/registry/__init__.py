"""Versions and aliases in MLflow's model registry, changed together with the promotion ledger."""
