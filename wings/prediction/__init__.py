"""`gauntlet predict`: what a bundle's model predicts for images, arrays, videos and cameras."""
