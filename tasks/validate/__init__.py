"""Is the file a sound ONNX model, and does it compute what its source computes?"""
