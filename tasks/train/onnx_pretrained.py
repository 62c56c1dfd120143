"""A pretrained ONNX file, which is its own reference."""

from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal

import onnx
from pydantic import Field

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature, signature_from_graph
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden, golden_cases, predict_split
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import require_test_split, splits_to_score
from gauntlet.metrics.output_comparison import Tolerances, compare_outputs
from gauntlet.onnx_model import model_file
from gauntlet.onnx_model.graph import constants, declare_outputs, parameter_count
from gauntlet.onnx_model.recognition import Operators, reads_attention
from gauntlet.runtime.batched_inference import batched_inference, tensor_output_names
from gauntlet.runtime.session import open_session
from gauntlet.runtime.source_session import open_source
from tasks.train.base import Training
from tasks.train.facts import TrainFacts, report_model
from tasks.train.other_lengths import Lengths, cut_samples
from tasks.train.states import StatePairs, with_primary_and_states

BATCH = 16
SAME = Tolerances(max_rel_error=1e-3, batch_sizes=(BATCH,))
"""What graph optimizations may change before their outputs are not taken for those of the file."""


class OnnxModel(Training):
    """Load an ONNX file. Every candidate is compared with its outputs.

    Those of a float32 file are computed without the runtime's graph optimizations: what they change is a fault, too.
    """

    everyday: ClassVar = {"model": "model.onnx"}
    kind: Literal["onnx"] = "onnx"
    model: Path = Field(description="the file; its external data, if any, is in the same folder")
    primary_output: str | None = Field(None, description="output that names the class; default: scores, else labels")
    layout: Literal["NCHW", "NHWC", "none"] | None = Field(None, description="default: the file's, else the data's")
    lengths: Lengths = ()
    states: StatePairs = None

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return model_file.model_files(self.model)

    @property
    def operators(self) -> Operators:
        """Attention if the graph computes it, else unknown."""
        return "attention" if reads_attention(self.model) else "unknown"

    def fit(self, splits: Splits, signature: Signature, workspace: Workspace) -> Report[TrainFacts]:
        """Load the model and record its golden outputs. See `tasks.train.train`."""
        test = require_test_split(splits)
        proto = model_file.read_graph_with_local_data(self.model)
        declare_outputs(proto)
        try:
            source, session = open_source(self.model), open_session(self.model)
        except StageError as error:
            raise StageError(f"{self.model}: {error}. Fix: see `gauntlet diagnose {self.model}`") from error

        def predict(inputs: NamedArrays, chosen: Any = source) -> NamedArrays:
            return batched_inference(chosen, inputs).run(BATCH)

        signature = self._signature(proto, signature)
        others = cut_samples(predict, test, signature, self.lengths)
        cases = golden_cases(predict, test, sizes=others.cases, observed_values_only=True)
        optimized = compare_outputs(SAME, session, cases, signature)
        if not optimized.failures and all(row.within(SAME) for row in optimized.rows):  # twice as fast for the rest
            predict = partial(predict, chosen=session)
        golden = Golden(cases, predict_split(predict, test), test.labels)
        signature = with_primary_and_states(signature, golden, self)
        facts = TrainFacts(
            framework=f"onnx, made by {proto.producer_name or 'an unnamed tool'} {proto.producer_version}".strip(),
            architecture=proto.graph.name or self.model.stem,
            parameters=parameter_count(constants(proto.graph).values()),
            signature=signature,
        )
        ignored = [o.name for o in session.get_outputs() if o.name not in tensor_output_names(session)]
        detail = f"not tensors, so they cannot be compared: {', '.join(ignored)}" if ignored else ""
        fix = _as_tensors(proto.graph, ignored, self.model) if ignored else ""
        check = Check.of("train.ignored_outputs", len(ignored), "==", 0, detail, fix, severity="warning")
        path = workspace.folder / "model.onnx"
        model_file.copy_model(self.model, path)
        model = model_file.read_for_editing(path)
        declare_outputs(model)
        signature.write(model)
        companions = model_file.write_model(model, path)
        scored, checks = splits_to_score(splits), (check, *others.checks())
        return report_model(facts, golden, predict, scored, workspace, path, *companions, checks=checks)

    def _signature(self, proto: onnx.ModelProto, data: Signature) -> Signature:
        """Return the file's own signature, or what its graph declares, completed by the data's."""
        known = Signature.find(proto) or signature_from_graph(proto)
        values, first = len(data.preprocessing.mean if data.preprocessing else ()), known.inputs[0]
        channels = {"NCHW": first.shape[-3:-2], "NHWC": first.shape[-1:]}.get(data.layout, ())
        if (values, *channels) in ((1, 3), (3, 1)):
            what = f"data.mean: length {values}, one a channel; the input {first.name} has {channels[0]} channels"
            raise ConfigError(f"{what}. Fix: give {channels[0]} values in data.mean and in data.std")
        return known.replace(
            task=data.task if known.task == "arrays" else known.task,
            labels=known.labels or data.labels,
            decode=known.decode or data.decode,
            layout=self.layout or (known.layout if known.layout != "none" else data.layout),
            preprocessing=known.preprocessing or data.preprocessing,
        )


def _as_tensors(graph: onnx.GraphProto, ignored: list[str], model: Path) -> str:
    """Return how outputs that are no tensors can be compared, too: CatBoost always writes a ZipMap."""
    made = {name: node for node in graph.node for name in node.output}
    if any(name not in made or made[name].op_type != "ZipMap" for name in ignored):
        return "return tensors to compare them too"
    outputs = ",".join(made[o.name].input[0] if o.name in ignored else o.name for o in graph.output)
    way = f"gauntlet cut {model} tensors.onnx --outputs {outputs}"
    return f"export without ZipMap (zipmap=False), or cut it off ({way}), to compare probabilities too"
