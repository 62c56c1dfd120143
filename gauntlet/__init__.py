"""The library under the pipeline: no stage, no Prefect, no MLflow."""
