"""The model that takes images: made, proven, and raced from image to output."""
