"""An ONNX model as a file and as a graph."""
