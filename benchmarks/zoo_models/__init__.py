"""Models that people recognise, made from the frameworks themselves: seeded, seconds each, nothing is downloaded.

A function of `MODELS` writes a model into a folder, and returns it with its samples.
"""

from collections.abc import Callable
from pathlib import Path

from zoo_models.boosted_models import boosted
from zoo_models.jax_models import functions
from zoo_models.keras_layers import layers
from zoo_models.onnx_models import files
from zoo_models.other_kinds import other_kinds
from zoo_models.sklearn_listed import every_listed
from zoo_models.sklearn_models import pipelines
from zoo_models.torch_networks import networks
from zoo_models.torchvision_networks import vision
from zoo_models.zoo_model import ZooModel

MODELS: dict[str, Callable[[Path], ZooModel]] = {
    **networks(), **vision(), **layers(), **every_listed(), **pipelines(), **boosted(), **functions(),
    **files(), **other_kinds(),
}  # fmt: skip
"""By name: the framework, and what it is."""
