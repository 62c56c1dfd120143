"""The house of a model: pure stages that return reports, and the values that travel between them."""

import gauntlet  # noqa: F401 - before a stage imports ONNX Runtime, whose telemetry it turns off
