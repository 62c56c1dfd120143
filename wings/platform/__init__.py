"""Prefect, MLflow, deployments and workers on one machine, and the databases of servers for many."""
