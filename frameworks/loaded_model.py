"""What the pretrained models share that are called as `frameworks.session` describes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from frameworks.input_sizes import with_open_axes
from frameworks.session import FrameworkSession, LoadedModel
from gauntlet.core.arrays import NamedArrays, dtype_name
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import record_golden
from gauntlet.datasets.splits import Splits
from gauntlet.frameworks.training import splits_to_score
from gauntlet.runtime.batched_inference import batched_inference
from tasks.train.base import Brought
from tasks.train.facts import TrainFacts, report_model
from tasks.train.other_lengths import cut_samples
from tasks.train.states import with_primary_and_states

BATCH = 64


class BroughtFile(Brought):
    """A kind of `train` whose model is one file."""

    model: Path

    def files(self) -> tuple[Path, ...]:
        """Return the user's files that are read."""
        return (self.model,)


def report_loaded(
    config: Any,
    model: LoadedModel,
    store_as: Callable[[tuple[TensorSpec, ...]], Path],
    splits: Splits,
    signature: Signature,
    workspace: Workspace,
) -> Report[TrainFacts]:
    """Record the golden outputs of a loaded model; raise StageError if the data does not fit it.

    `store_as` writes the model's file, given the inputs for this data, and returns it.
    """
    scored = splits_to_score(splits)
    test = scored["test"]
    session = FrameworkSession(model.inputs_for(signature.inputs), model.call)
    first = test.take(slice(0, 1))
    session.observe(first)

    def predict(inputs: NamedArrays) -> NamedArrays:
        return batched_inference(session, inputs).run(BATCH)

    # Random integers may lie outside an embedding's table.
    indices = any(not spec.dtype.startswith("float") for spec in session.inputs)
    others = cut_samples(predict, test, signature.replace(inputs=session.inputs), getattr(config, "lengths", ()))
    golden = record_golden(predict, test, sizes=others.cases, observed_values_only=indices)
    batch = () if batched_inference(session, first).one_sample_per_call else session.inputs[0].shape[:1]
    arrays = golden.test_outputs.items()
    outputs = [TensorSpec(name=n, dtype=dtype_name(array), shape=(*batch, *array.shape[1:])) for n, array in arrays]
    signature = signature.replace(inputs=session.inputs, outputs=with_open_axes(outputs, golden))
    facts = TrainFacts(
        framework=model.framework,
        architecture=model.architecture,
        parameters=model.parameters,
        signature=with_primary_and_states(signature, golden, config),
    )
    return report_model(facts, golden, predict, scored, workspace, store_as(session.inputs), checks=others.checks())
