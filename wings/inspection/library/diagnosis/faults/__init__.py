"""The faults that `gauntlet diagnose` finds: the check and the fix of each."""
