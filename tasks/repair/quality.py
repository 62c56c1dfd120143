"""How good some answers are beside the FP32 model's, and what the accuracy gate would say of them."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx
from pydantic import Field

from tasks.accuracy import AccuracyConfig
from tasks.data.dataset import Arrays, Split
from tasks.frozen import Frozen, Number
from tasks.runtime.calls import calls
from tasks.runtime.session import open_session
from tasks.runtime.threads import lanes
from tasks.signature import Signature
from tasks.statistics import classes, sqnr_db, top1_agreement

BATCH = 16


class Quality(Frozen):
    """Answers on the images of a search."""

    accuracy_drop: Number | None = Field(description="against the FP32 model; None without labels")
    top1_agreement: Number
    sqnr_db: Number = Field(description="of the worst output; infinite where no output is a number")


@dataclass(frozen=True)
class Limits:
    """What an answer must keep: the accuracy gate's own limits, with the SQNR raised where the search asks for more."""

    accuracy: AccuracyConfig
    min_sqnr_db: float

    def allow(self, quality: Quality) -> bool:
        """Tell whether the gate would pass these answers."""
        drop, agreement = quality.accuracy_drop, quality.top1_agreement
        if drop is None:
            same = agreement >= self.accuracy.min_top1_agreement
        else:
            same = drop <= self.accuracy.max_accuracy_drop
        return same and quality.sqnr_db >= self.min_sqnr_db


class Reference:
    """Some images and the FP32 model's answers for them."""

    def __init__(self, model: Path, split: Split, images: int) -> None:
        self.model = model
        self.signature = Signature.read(onnx.load(model, load_external_data=False))
        self.labels: npt.NDArray[np.int64] | None = None if split.labels is None else split.labels[:images]
        at_once, threads = lanes()
        made = calls(open_session(model, threads=threads), split.take(slice(0, images)))
        self.samples, self.batch, self.answers = made.samples, made.batch(1), made.run(BATCH, at_once)

    def __len__(self) -> int:
        return len(next(iter(self.samples.values())))

    def ask(self, model: Path) -> Arrays:
        """Return a model's answers for all images."""
        at_once, threads = lanes()
        return calls(open_session(model, threads=threads), self.samples).run(BATCH, at_once)

    def quality(self, answers: Arrays) -> Quality:
        """Compare answers, for all images or the first of them, with the FP32 model's."""
        count = len(next(iter(answers.values())))
        expected = {name: array[:count] for name, array in self.answers.items()}
        floats = [name for name, array in expected.items() if array.dtype.kind == "f"]
        main = self.signature.answer or next(iter(expected))
        found, known = (classes(outputs[main], self.signature.labels) for outputs in (answers, expected))
        drop = None
        if self.labels is not None and found is not None and known is not None:
            truth = self.labels[:count]
            drop = float(np.mean(known == truth) - np.mean(found == truth))
        return Quality(
            accuracy_drop=drop,
            top1_agreement=top1_agreement(answers[main], expected[main]),
            sqnr_db=min((sqnr_db(answers[name], expected[name]) for name in floats), default=float("inf")),
        )
