"""Execution providers of ONNX Runtime beside those of the core: NVIDIA, AMD, Apple, Qualcomm, and several in order."""
