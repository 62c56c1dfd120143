"""Further sizes as `gauntlet run --shape` names them: lengths of open axes."""

from collections.abc import Iterable
from typing import Any

from configs.frameworks import trainings
from gauntlet.core.errors import ConfigError
from gauntlet.core.signature import Signature
from gauntlet.frameworks.trial_run import Shapes, TrialRun, are_whole_inputs, axis_lengths


def add_sizes(
    train: dict[str, Any], notes: dict[str, str], trial: TrialRun, base: Shapes, further: Iterable[Shapes]
) -> None:
    """Add `further` sizes to the values of `train`, and a note; nothing for the size that the data has.

    `base` and each of `further` are shapes of one sample by input. Raise `ConfigError` where one does not fit the
    model, or this kind of `train` takes no further sizes.
    """
    declared = Signature(task="arrays", inputs=trial.inputs, outputs=(), layout="none")
    base = {spec.name: base[spec.name] for spec in trial.inputs if spec.name in base}
    whole = are_whole_inputs(declared, base)
    shapes = [shape for each in further if (shape := {**base, **each}) != base]
    if not shapes:
        return
    if "lengths" not in trainings()[train["kind"]].model_fields:
        kinds, fix = "files that name open axes: .onnx, .pt2, .keras, SavedModels", "export it, and run the ONNX file"
        raise ConfigError(f"--shape {next(iter(base))}: more than one size is for {kinds}. Fix: {fix}")
    own = axis_lengths(declared, base, whole=whole)
    sizes = [axis_lengths(declared, shape, whole=whole) for shape in shapes]
    named = [{axis: n for axis, n in size.items() if n != own[axis]} for size in sizes]
    train["lengths"] = named
    titles = (", ".join(f"{axis}={length}" for axis, length in size.items()) for size in named)
    notes["sizes"] = f"also {'; '.join(titles)}, judged and raced"
