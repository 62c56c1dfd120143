"""The faults that `gauntlet diagnose` finds, one module each: its check and its fix."""
