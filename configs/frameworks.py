"""What the frameworks that are there, and ONNX, bring to a configuration."""

from gauntlet.core.kinds import kinds
from gauntlet.core.unions import OneOf
from gauntlet.frameworks.framework import Framework, frameworks
from tasks.export.base import AsIs, Exporter
from tasks.train.base import Training
from tasks.train.onnx_pretrained import OnnxModel

DEFAULT_TRAINING = "torch"
ONNX = Framework(name="onnx", train=(OnnxModel,), export=(AsIs,), suffixes={".onnx": "onnx"})


def all_frameworks() -> tuple[Framework, ...]:
    """Return ONNX, which is always there, and the frameworks."""
    return (ONNX, *frameworks())


def trainings() -> dict[str, type[Training]]:
    """Return the kinds of `train` by name."""
    return OneOf("train", ONNX.train).kinds()


def framework_of(train: str) -> Framework | None:
    """Return the framework of a kind of `train`; None for a kind that a package brings by itself."""
    own = (f for f in all_frameworks() if train in [kind.model_fields["kind"].default for kind in f.train])
    return next(own, None)


def exporters_for(train: str) -> list[str]:
    """Return the kinds of the exporters for what a kind of `train` makes, the default first; none for unknown kinds."""
    known, framework = trainings().get(train), framework_of(train)
    if known is None or known.exporters or framework is None:
        return [] if known is None else [*known.exporters]
    brought: list[type[Exporter]] = [kind for kind in kinds("export").values() if kind.framework == framework.name]
    return [str(exporter.model_fields["kind"].default) for exporter in (*framework.export, *brought)]


def suffixes() -> dict[str, str]:
    """Return the suffixes of model files: suffix -> kind of `train`."""
    return {suffix: kind for framework in all_frameworks() for suffix, kind in framework.suffixes.items()}
