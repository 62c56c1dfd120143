"""From a run's journal to MLflow."""
