"""scikit-learn pipelines: load, save, predict."""
