"""Further sizes as `gauntlet run --shape` names them: lengths of open axes, or sizes of images."""

from collections.abc import Iterable
from typing import Any

from configs.brought_data import LAYOUTS, layout_of
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
    own = axis_lengths(declared, base, whole=whole)
    sizes = [axis_lengths(declared, {**base, **each}, whole=whole) for each in further]
    named = [{axis: n for axis, n in size.items() if n != own[axis]} for size in sizes if size != own]
    layout = layout_of(trial.inputs[0].shape) if len(trial.inputs) == 1 else None
    key = "input_sizes" if layout else "lengths"
    if named and key not in trainings()[train["kind"]].model_fields:
        fix = "export it, and run the ONNX file"
        raise ConfigError(f"--shape {next(iter(base))}: more than one size is for an ONNX file. Fix: {fix}")
    if not named:
        return
    titles = [", ".join(f"{axis}={length}" for axis, length in size.items()) for size in named]
    if layout:
        axes = [trial.inputs[0].shape[axis] for axis in (1, 2, 3) if axis != LAYOUTS[layout]]
        train[key] = [[{**own, **size}.get(str(axis), axis) for axis in axes] for size in named]
        titles = ["x".join(map(str, size)) for size in train[key]]
    else:
        train[key] = named
    notes["sizes"] = f"also {'; '.join(titles)}, judged and raced"
