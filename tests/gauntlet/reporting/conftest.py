"""Runs by hand, as reports show them."""

from reported_runs import passed, stopped_at_data, stopped_at_numerics

__all__ = ["passed", "stopped_at_data", "stopped_at_numerics"]
