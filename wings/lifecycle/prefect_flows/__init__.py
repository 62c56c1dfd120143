"""Promotion, monitoring and retraining as flows of Prefect, and what they record."""
