"""Further data: images with boxes of COCO and Pascal VOC, CIFAR, and scenes of digits to try the product with."""
