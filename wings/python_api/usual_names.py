"""Arrays as people have them: under names such as `X` and `y_test`, and with other axes than the model takes."""

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path

import numpy as np

from configs.brought_model import kind_of
from configs.frameworks import trainings
from configs.required_packages import require_packages_of
from gauntlet.core.arrays import NamedArrays, in_shape, read_arrays
from gauntlet.core.artifact import Store
from gauntlet.core.errors import PipelineError
from gauntlet.datasets.splits import LABELS, NPZ_ERRORS, array_name, input_name, is_truth
from gauntlet.datasets.splitting import GROUPS, TIMES
from tasks.train.base import Brought
from wings.python_api.table_columns import ONLY_INPUT, Inputs

SPLIT_WORDS = {
    "train": "train(?:ing)?",
    "validation": "val(?:id(?:ation)?)?|dev",
    "calibration": "calib(?:ration)?",
    "test": "test(?:ing)?",
}
"""Split -> how names of arrays and of files say it."""
_SPLIT = "|".join(f"(?P<{{0}}{split}>{words})" for split, words in SPLIT_WORDS.items())
NAME = re.compile(
    rf"(?:(?:{_SPLIT.format('a_')})_?)?(?:(?P<inputs>x|data|features?|inputs?|images?|samples?|arr_0)"
    rf"|(?P<labels>y|labels?|targets?|class|arr_1))(?:_?(?:{_SPLIT.format('b_')}))?",
    re.IGNORECASE,
)
WHOLE = ""
"""The split of samples that are not split yet."""


def by_usual_names(arrays: NamedArrays, inputs: Sequence[str]) -> dict[str, NamedArrays]:
    """Return arrays by split, under the names of a model's inputs and `labels`; as they are where names say no more.

    Args:
        arrays: as people name them.
        inputs: the model's; none where it has no names for them. An array that is called so is that input.
    """
    own = {name for name in arrays if name in (GROUPS, TIMES) or is_truth(name) or input_name(name) in inputs}
    roles: dict[tuple[str, str], list[str]] = {}
    for name in arrays:
        if name not in own and (match := NAME.fullmatch(name)):
            split = next((key[2:] for key, text in match.groupdict().items() if text and key[1:2] == "_"), WHOLE)
            roles.setdefault((split, "inputs" if match["inputs"] else LABELS), []).append(name)
    if any(input_name(name) in inputs for name in own):  # what is left of the names may only be the labels'
        only = [] if LABELS in arrays else roles.get((WHOLE, LABELS), [])
        return {WHOLE: {LABELS if [name] == only else name: array for name, array in arrays.items()}}
    labels = {name for (_, role), names in roles.items() if role == LABELS for name in names}
    free = [name for name in arrays if name not in own and name not in labels]
    splits = {split for split, role in roles if role == "inputs"}
    if len(inputs) < 2 and len(free) == 1 and not splits:
        roles, splits = roles | {(WHOLE, "inputs"): free}, {WHOLE}
    if (
        len(inputs) > 1
        or not splits
        or (len(splits) > 1 and WHOLE in splits)
        or any(len(n) > 1 for n in roles.values())
    ):
        return {WHOLE: arrays}
    name = array_name(inputs[0]) if inputs else ONLY_INPUT
    made = {}
    for split in splits:
        made[split] = {name: arrays[roles[split, "inputs"][0]]}
        if (split, LABELS) in roles:
            made[split][LABELS] = arrays[roles[split, LABELS][0]]
    if len(splits) == 1:
        return {WHOLE: {key: array for key, array in arrays.items() if key in own} | made[splits.pop()]}
    return _with_test(made)


def _with_test(splits: dict[str, NamedArrays]) -> dict[str, NamedArrays]:
    """Return splits with one for the test, which that for validation is where there is none."""
    return splits if "test" in splits else {"test" if name == "validation" else name: splits[name] for name in splits}


def array_files(path: Path) -> dict[str, NamedArrays]:
    """Return the arrays of an `.npz` file, of a folder with one for each split, or of `.npy` files; else none."""
    splits = {file: _split_of(file.stem) for file in sorted(path.glob("*.npz"))}
    try:
        if path.suffix == ".npz" and path.is_file():
            return {WHOLE: arrays} if (arrays := read_arrays(path)) else {}
        if splits and all(splits.values()):
            return {str(split): read_arrays(file) for file, split in splits.items()}
        files = {} if splits else {file.stem: np.load(file, allow_pickle=False) for file in sorted(path.glob("*.npy"))}
    except NPZ_ERRORS:  # what reads the samples says more about it
        return {}
    return {WHOLE: files} if files else {}


def _split_of(stem: str) -> str | None:
    return next((split for split, words in SPLIT_WORDS.items() if re.fullmatch(words, stem, re.IGNORECASE)), None)


def in_usual_form(parts: dict[str, NamedArrays], inputs: Inputs) -> tuple[dict[str, NamedArrays], str]:
    """Return arrays by split, under the names and in the shapes of a model's inputs, and what was changed, in words."""
    named = [(split, arrays, by_usual_names(arrays, tuple(inputs))) for split, arrays in parts.items()]
    splits = {key or split: arrays for split, _, usual in named for key, arrays in usual.items()}
    changes = []
    if [*splits] != [*parts] or any(splits[split].keys() != parts[split].keys() for split in parts):
        names, read = next(iter(parts.values())), sorted({*chain(*splits.values())}, key=is_truth)
        of = f" of {', '.join(splits)}" if WHOLE not in splits else ""
        changes.append(f"{', '.join(names)} read as {' and '.join(read)}{of}")
    only = next(iter(inputs)) if len(inputs) == 1 else None
    for arrays in splits.values():
        for name in [name for name in arrays if not is_truth(name) and name not in (GROUPS, TIMES)]:
            before, shape = arrays[name], inputs.get(input_name(name), inputs[only] if only else None)
            arrays[name] = in_shape(before, shape)
            if arrays[name].shape != before.shape:
                changes.append(f"{name} {[*before.shape[1:]]} taken as {[*arrays[name].shape[1:]]}")
    return splits, "; ".join(dict.fromkeys(changes))


def framework_inputs(model: str, store: Store, *, trust: bool) -> Inputs:
    """Return the inputs of a framework's model, with the shapes that it declares; none where it does not say them."""
    try:
        training = trainings()[kind_of(Path(model))]
        config = training.model_validate(training.values(model, None, trust=trust))
        require_packages_of(model, "train", config)
        if not isinstance(config, Brought):
            return {}
        loaded = config.load_model(store)
    except PipelineError:  # what runs the model says more about it
        return {}
    shapes = {spec.name: spec.shape for spec in loaded.declared}
    names = loaded.arguments.required or tuple(shapes)
    return {name: shapes.get(name) for name in names}
