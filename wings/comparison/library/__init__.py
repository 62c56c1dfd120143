"""What a comparison computes."""
