"""Videos: read, predicted frame by frame, and written."""
