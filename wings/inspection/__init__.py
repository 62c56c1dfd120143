"""What is in a model file, and what is wrong with it: `gauntlet inspect`, `diagnose` and `cut`."""
