"""What the race at further sizes consists of."""
