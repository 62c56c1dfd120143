"""Image decoding, preprocessing and augmentation."""
