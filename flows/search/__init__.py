"""The search for candidates: what passes, recipes and pruning make of a network, and which of it is tried."""
