"""Races on other machines: a flow that the workers of a pool run, and the run's side, which gives it to them."""
