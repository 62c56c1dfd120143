"""Transformations that bring a model into the form that quantizers and graph passes expect.

Each changes an `onnx.ModelProto` in place, whose large weights may be in a file that is not read, and returns in one
line what it changed: an empty text where there is nothing to do. None checks that the outputs stay the same; the stage
`normalize` and `gauntlet diagnose --fix` do. `StageError` where the transformation does not fit the model.
"""
