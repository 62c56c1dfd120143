"""Gradient-boosted trees of LightGBM and XGBoost: load, save, predict."""
