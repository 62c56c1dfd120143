"""Predictions of videos: `gauntlet predict BUNDLE clip.mp4|camera:0|ADDRESS`."""
