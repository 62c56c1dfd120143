"""Execution providers of ONNX Runtime beside those of the core, several of them in order, and OpenVINO."""
