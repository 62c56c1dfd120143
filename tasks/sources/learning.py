"""What learning needs of the data and leaves behind, whichever framework and whichever stage did it."""

from collections.abc import Mapping

import numpy as np
from pydantic import Field

from tasks.artifact import Artifact
from tasks.data.dataset import Arrays, Split
from tasks.data.golden import Golden, Predict, answers
from tasks.errors import StageError
from tasks.frozen import Frozen, Number
from tasks.report import Check
from tasks.signature import Signature
from tasks.statistics import classes
from tasks.workspace import Workspace


class Epoch(Frozen):
    """One pass over the training images."""

    epoch: int = Field(ge=1)
    train_loss: Number
    validation_loss: Number
    validation_accuracy: Number
    learning_rate: Number = Field(description="at the end of the epoch")


def finite_loss(loss: float, where: str, part: str = "train") -> Check:
    """Return the check that stops a training whose loss is no number any more; `part` is the configuration's."""
    return Check(
        name=f"{part}.loss",
        value=loss,
        op="<",
        limit=float("inf"),
        detail=where,
        remedy=f"lower {part}.learning_rate, or look for broken values in the training images"
        if not np.isfinite(loss)
        else "",
    )


def labelled(splits: Mapping[str, Split], *names: str) -> dict[str, Split]:
    """Return the splits that a training needs.

    Raises:
        StageError: when one is missing, or has no labels.
    """
    for name in names:
        if name not in splits:
            raise StageError(f"training needs the split '{name}'; the data has {sorted(splits)}")
        if splits[name].labels is None:
            raise StageError(f"training needs labels; the split '{name}' has none")
    return {name: splits[name] for name in names}


def keep_answers(
    golden: Golden, predict: Predict, splits: Mapping[str, Split], signature: Signature, out: Workspace
) -> dict[str, Artifact]:
    """Save the golden answers and, where there are labels, the class numbers that the model predicts.

    Of the training split as many samples as there are for testing, evenly spread, tell how well it is remembered.

    Args:
        golden: the model's answers; those for the test split are not asked for again.
        predict: the model.
        splits: each one with labels, but for the calibration split, is predicted.
        signature: of the model, with `answer`.
        out: where to write.
    """
    files = {"golden": out.folder / "golden.npz"}
    golden.save(files["golden"])
    predictions: Arrays = {}
    for name, split in splits.items():
        if name == "calibration" or split.labels is None:
            continue
        chosen = np.arange(len(split))
        if name == "train" and len(split) > len(splits["test"]):
            chosen = np.linspace(0, len(split) - 1, len(splits["test"])).round().astype(np.int64)
        outputs = golden.answers if name == "test" else answers(predict, split, chosen)
        found = classes(outputs[signature.answer], signature.labels) if signature.answer else None
        if found is None:
            shapes = {output: f"{array.dtype}{list(array.shape)}" for output, array in outputs.items()}
            raise StageError(
                f"the data has labels, but no output is known to name a class: {shapes}; "
                "name one with train.answer (scores (n, classes), or one label a sample), or leave the labels out"
            )
        predictions |= {name: found, f"{name}_labels": split.labels[chosen]}
    if predictions:
        files["predictions"] = out.folder / "predictions.npz"
        np.savez(files["predictions"], allow_pickle=False, **predictions)
    return {kind: out.keep(path) for kind, path in files.items()}
