"""ONNX Runtime, as every stage uses it. Nothing in this folder imports more than numpy, ONNX and the runtime."""
