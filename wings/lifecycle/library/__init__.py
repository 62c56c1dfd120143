"""What is decided from numbers, free of Prefect and MLflow."""

from pathlib import Path

TEMPLATES = Path(__file__).parents[1] / "templates"
"""Of the pages."""
