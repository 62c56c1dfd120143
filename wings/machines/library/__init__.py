"""The half of the wing that knows neither Prefect nor MLflow: the shared store, and what the stage `remote` judges."""
