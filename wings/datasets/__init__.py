"""Data sets to try the product with: CIFAR, and scenes of digits for detection and segmentation."""
