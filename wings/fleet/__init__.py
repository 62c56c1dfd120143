"""Many models of a folder, each through the pipeline."""
