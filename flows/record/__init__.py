"""A run's record and its work: folders, locks, the journal, cached results, and the report at the end."""
