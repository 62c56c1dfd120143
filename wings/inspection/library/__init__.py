"""The half of the wing that knows no command line: faults and their fixes, summaries, and parts of models."""
