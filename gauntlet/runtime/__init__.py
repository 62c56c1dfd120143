"""ONNX Runtime sessions, workers and measurements. Worker modules import only numpy and the runtime."""
