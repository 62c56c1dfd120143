"""Adds ONNX's own evaluator as a target of onnx-gauntlet, and a pass that removes Identity nodes."""
