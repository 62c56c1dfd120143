"""The views of a run that a person reads. They are made from the run's record alone, so they work without a server."""
