"""A model that nobody here trained: an ONNX file, which is its own reference."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.core.frozen import Frozen
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Split
from gauntlet.frameworks.training import measured, store_golden_and_predictions
from gauntlet.onnx_model.model_file import (
    copy_model,
    model_files,
    read_for_editing,
    read_graph_with_local_data,
    write_model,
)
from gauntlet.runtime.batched_inference import batched_inference, tensor_output_names
from gauntlet.runtime.session import open_session
from tasks.train.facts import TrainFacts, find_answer
from tasks.train.input_sizes import PRETRAINED_SIZES_HELP, InputSizes, resized_samples

BATCH = 16


class OnnxModel(Frozen):
    """Take an ONNX file as it is. What it answers now is what every candidate is compared with."""

    kind: Literal["onnx"] = "onnx"
    model: Path = Field(description="the file; its external data, where there is any, lies in the same folder")
    primary_output: str | None = Field(
        None, description="the output that names the class; by default the first with scores, else with labels"
    )
    layout: Literal["NCHW", "NHWC", "none"] | None = Field(
        None, description="of the pictures that go in; by default what the file says, or else what the data says"
    )
    input_sizes: InputSizes = Field((), description=PRETRAINED_SIZES_HELP)
    seed: int = Field(0, ge=0, description="of the random inputs")

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return model_files(self.model)

    def fit(self, splits: Mapping[str, Split], signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Take the model and ask it for its answers. See `tasks.train.train`.

        Raises:
            StageError: when the file cannot be read or run, or the data does not fit its inputs.
        """
        test = measured(splits)
        proto = read_graph_with_local_data(self.model)
        try:
            session = open_session(self.model)
        except StageError as error:
            raise StageError(f"{self.model}: {error}. gauntlet diagnose {self.model} may know the way out") from error

        def predict(inputs: NamedArrays) -> NamedArrays:
            return batched_inference(session, inputs).run(BATCH)

        signature = self._signature(proto, signature)
        sizes = resized_samples(test, self.input_sizes, signature)
        golden = record_golden(predict, test, seed=self.seed, sizes=sizes, values_that_occur=True)
        signature = signature.replace(
            primary_output=find_answer(self.primary_output, golden.test_outputs, signature.labels)
        )
        path = workspace.folder / "model.onnx"
        ignored = [o.name for o in session.get_outputs() if o.name not in tensor_output_names(session)]
        facts = TrainFacts(
            framework=f"onnx, made by {proto.producer_name or 'an unnamed tool'} {proto.producer_version}".strip(),
            architecture=proto.graph.name or self.model.stem,
            parameters=sum(math.prod(tensor.dims) for tensor in proto.graph.initializer),
            signature=signature,
        )
        artifacts = store_golden_and_predictions(golden, predict, {"test": test}, signature, workspace)
        copy_model(self.model, path)
        kept = read_for_editing(path)
        signature.write(kept)
        artifacts["model"] = workspace.store_file(path, *write_model(kept, path))
        return Report(stage="train", facts=facts, checks=(_ignored(ignored),), artifacts=artifacts)

    def _signature(self, proto: onnx.ModelProto, data: Signature) -> Signature:
        """Return what the file says of itself, and where it says nothing, what the data says."""
        try:
            known = Signature.read(proto)
        except StageError:  # most models of this world carry none
            known = signature_from_graph(proto)
        return known.replace(
            labels=known.labels or data.labels,
            layout=self.layout or (known.layout if known.layout != "none" else data.layout),
            preprocessing=known.preprocessing or data.preprocessing,
        )


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
