"""A model that nobody here trained: an ONNX file, which is its own reference."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from pydantic import Field

from tasks.data.dataset import Arrays, Split
from tasks.data.golden import ask
from tasks.errors import StageError
from tasks.frozen import Frozen
from tasks.model_file import copy_model, files_of, read_inside, read_to_change, write_model
from tasks.report import Check, Report
from tasks.runtime.calls import calls, tensor_outputs
from tasks.runtime.session import open_session
from tasks.signature import Signature, describe
from tasks.sources.learning import keep_answers
from tasks.statistics import classes
from tasks.train.facts import TrainFacts
from tasks.train.sizes import BROUGHT, Sizes, at_other_sizes
from tasks.workspace import Workspace

BATCH = 16


class OnnxModel(Frozen):
    """Take an ONNX file as it is. What it answers now is what every candidate is compared with."""

    kind: Literal["onnx"] = "onnx"
    model: Path = Field(description="the file; its external data, where there is any, lies in the same folder")
    answer: str | None = Field(
        None, description="the output that names the class; by default the first with scores, else with labels"
    )
    layout: Literal["NCHW", "NHWC", "none"] | None = Field(
        None, description="of the pictures that go in; by default what the file says, or else what the data says"
    )
    sizes: Sizes = Field((), description=BROUGHT)
    seed: int = Field(0, ge=0, description="of the random inputs")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return files_of(self.model)

    def fit(self, splits: Mapping[str, Split], signature: Signature, out: Workspace) -> Report[TrainFacts]:
        """Take the model and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the file cannot be read or run, or the data does not fit its inputs.
        """
        if "test" not in splits:
            raise StageError(f"the model is measured on the split 'test'; the data has {sorted(splits)}")
        proto = read_inside(self.model)
        try:
            session = open_session(self.model)
        except StageError as error:
            raise StageError(f"{self.model}: {error}. gauntlet diagnose {self.model} may know the way out") from error

        def predict(inputs: Arrays) -> Arrays:
            return calls(session, inputs).run(BATCH)

        signature = self._signature(proto, signature)
        sizes = at_other_sizes(splits["test"], self.sizes, signature)
        golden = ask(predict, splits["test"], seed=self.seed, sizes=sizes, values_that_occur=True)
        signature = signature.replace(answer=self._answer(golden.answers, signature.labels))
        path = out.folder / "model.onnx"
        ignored = [o.name for o in session.get_outputs() if o.name not in tensor_outputs(session)]
        facts = TrainFacts(
            framework=f"onnx, made by {proto.producer_name or 'an unnamed tool'} {proto.producer_version}".strip(),
            architecture=proto.graph.name or self.model.stem,
            parameters=sum(math.prod(tensor.dims) for tensor in proto.graph.initializer),
            best_epoch=0,
            stopped_early=False,
            history=(),
            signature=signature,
        )
        artifacts = keep_answers(golden, predict, {"test": splits["test"]}, signature, out)
        copy_model(self.model, path)
        kept = read_to_change(path)
        signature.write(kept)
        artifacts["model"] = out.keep(path, *write_model(kept, path))
        return Report(stage="train", facts=facts, checks=(_ignored(ignored),), artifacts=artifacts)

    def _signature(self, proto: onnx.ModelProto, data: Signature) -> Signature:
        """Return what the file says of itself, and where it says nothing, what the data says."""
        try:
            known = Signature.read(proto)
        except StageError:  # most models of this world carry none
            known = describe(proto)
        return known.replace(
            labels=known.labels or data.labels,
            layout=self.layout or (known.layout if known.layout != "none" else data.layout),
            preprocessing=known.preprocessing or data.preprocessing,
        )

    def _answer(self, outputs: Arrays, labels: tuple[str, ...]) -> str | None:
        if self.answer is not None and self.answer not in outputs:
            raise StageError(f"train.answer: the model has no output {self.answer!r}; it has {sorted(outputs)}")
        if self.answer is not None:
            return self.answer
        named = [name for name, array in outputs.items() if classes(array, labels) is not None]
        scores = [name for name in named if outputs[name].dtype.kind == "f"]
        return next(iter(scores or named), None)


def _ignored(outputs: list[str]) -> Check:
    return Check(
        name="train.ignored_outputs",
        value=len(outputs),
        op="==",
        limit=0,
        severity="warning",
        detail=f"no tensors, so they cannot be compared: {', '.join(outputs)}" if outputs else "",
        remedy="export without ZipMap (zipmap=False), and probabilities are compared too" if outputs else "",
    )
