"""One version of a model, loaded, proven and ready to answer."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.loading import refusals
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import ConfigError, PipelineError, StageError, install_command, one_line
from gauntlet.core.kinds import required
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import samples_in_turns
from gauntlet.request_log.log_format import VERSION_DIGITS
from gauntlet.runtime.batched_inference import tensor_output_names
from gauntlet.runtime.timing import time_calls
from serving.batcher import Batcher
from serving.cost_model import CostModel, best_batch, measured_seconds
from serving.errors import LoadFailed, Overloaded
from serving.golden_check import disagreement, keeps_rows_apart
from serving.observations import Metrics, Observations
from serving.open_inference import DATATYPES
from serving.settings import Limits

NAME = re.compile(r"[\w.-]{1,128}")
IMAGE_AXES = 3
"""Of an image without a batch axis."""


@dataclass(eq=False)
class ServedModel:
    """A bundle's predictor behind its queue."""

    name: str
    version: str
    digest: str
    predictor: Predictor
    max_batch: int
    """Rows of a call at most; 0 where the model's first axis is not a batch of any size."""
    batcher: Batcher
    observations: Observations
    no_embedding: str = ""
    """Why the predictor's outputs do not have the embedding; empty where they do, or where nobody asked."""
    apart: bool = False
    """Whether each request has a call of its own, because rows of a call change each other."""
    users: int = 0
    """Requests that hold this version, which is closed after the last one."""

    @property
    def signature(self) -> Signature:
        """Inputs, outputs and preprocessing."""
        return self.predictor.signature

    @property
    def takes_images(self) -> bool:
        """Whether images can be turned into its input."""
        return self.signature.takes_images

    @property
    def fixed_batch(self) -> int:
        """The batch that the model's first axis fixes; 1 where it fixes none, or an image has no such axis."""
        shape = self.signature.inputs[0].shape
        one_image = self.takes_images and len(shape) == IMAGE_AXES
        return shape[0] if shape and isinstance(shape[0], int) and not one_image else 1

    @classmethod
    def load(
        cls,
        path: Path,
        metrics: Metrics,
        limits: Limits,
        *,
        name: str | None = None,
        opened: Callable[[Bundle], Predictor] = Predictor,
        embeds: bool = False,
    ) -> "ServedModel":
        """Open a bundle, check its digests, warm it up, and compare it with its golden outputs on this processor.

        With `embeds`, its outputs also have the embedding that the bundle's reference has, where there is one.

        Raises:
            LoadFailed: with the reason, when any of it fails.
        """
        try:
            bundle = Bundle.open(path)
            digest = bundle.digest  # now: the folder may be replaced while it is served
            if damage := next(refusals(bundle), None):
                raise LoadFailed(f"{path}: {damage}. Fix: make the bundle again, or copy it again")
            return cls._prove(opened(bundle), digest, name or bundle.contract.name, metrics, limits, embeds)
        except PipelineError as error:
            raise LoadFailed(str(error)) from error

    @classmethod
    def _prove(
        cls, predictor: Predictor, digest: str, name: str, metrics: Metrics, limits: Limits, embeds: bool
    ) -> "ServedModel":
        """Measure what a call costs, choose the batch, and compare with the golden outputs at that batch."""
        _require_servable(name, predictor.signature, predictor.session)
        _require_preprocessing(predictor, name)
        golden, joins = predictor.bundle.golden(), _joins(predictor.signature)
        seconds = _seconds_by_rows(predictor, golden.inputs) if joins else _seconds_of_a_call(predictor, golden.inputs)
        max_batch = best_batch(seconds, limits.deadline_ms / 1000) if joins else 0
        cost = CostModel(seconds, max(1, max_batch))
        batches = {1, cost.max_rows}
        if problem := disagreement(predictor.run, golden, batches):
            raise LoadFailed(f"{name}: not its golden outputs on this processor: {problem}")
        apart = max_batch > 1 and not keeps_rows_apart(predictor.run, golden.inputs, max_batch)
        if apart:  # a call for each request, which has one row in most cases
            cost = CostModel({1: cost.call(1)}, max_batch)
        predictor, no_embedding = _embedding(predictor, golden.inputs, batches) if embeds else (predictor, "")
        if joins:
            count = 1 if apart else max_batch
            rows = samples_in_turns(golden.inputs, count)
            cost.calibrate(count, min(time_calls(lambda: predictor.run(rows, count), least=2)[0]) / 1000)
        if predictor.bundle.digest != digest:
            raise LoadFailed(f"{name}: the bundle was replaced while it was loaded. Fix: load it again")
        version = digest[:VERSION_DIGITS]
        observations = Observations(metrics, name, version)
        call = _batched_call(predictor, max_batch) if joins else _plain_call(predictor)
        batcher = Batcher(call, cost, observations, joins=joins, max_queue=limits.max_queue, apart=apart)
        return cls(name, version, digest, predictor, max_batch, batcher, observations, no_embedding, apart)

    def image_inputs(self, images: list[np.ndarray], deadline: float) -> tuple[list[NamedArrays], int]:
        """Return the inputs of the calls for decoded images, and how many rows of padding the last one has.

        Raises:
            Overloaded: at the deadline, a time of `perf_counter`.
        """
        parts: list[NamedArrays] = []
        for image in images:
            if perf_counter() > deadline:
                raise Overloaded("the images were not preprocessed within the deadline", 1)
            parts.append(self.predictor.inputs_of([image]))
        inputs = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
        if self.max_batch:
            return [inputs], 0
        size = self.fixed_batch
        if len(self.signature.inputs[0].shape) == IMAGE_AXES:
            return [{k: v[index] for k, v in inputs.items()} for index in range(len(images))], 0
        padding = -len(images) % size
        padded = {k: np.concatenate([v, np.repeat(v[-1:], padding, axis=0)]) for k, v in inputs.items()}
        starts = range(0, len(images), size)
        return [{k: v[start : start + size] for k, v in padded.items()} for start in starts], padding


def _embedding(predictor: Predictor, samples: NamedArrays, batches: set[int]) -> tuple[Predictor, str]:
    """Return the predictor with the embedding; the same one, and why, where that is not possible."""
    try:
        embedding = required("reference", "embedding", "request log: embeddings")(predictor.bundle)
        if isinstance(embedding, str):
            return predictor, embedding
        return embedding.added_to(predictor, samples, batches), ""
    except (ConfigError, StageError) as error:
        return predictor, str(error)


def _require_servable(name: str, signature: Signature, session: Any) -> None:
    if not NAME.fullmatch(name):
        raise LoadFailed(f"{name!r} cannot be in an address; allowed: letters, digits, '.', '_', '-'. Fix: --name NAME")
    for spec in (*signature.inputs, *signature.outputs):
        if spec.dtype not in DATATYPES:
            raise LoadFailed(f"{name}: '{spec.name}' is {spec.dtype}; the protocol has {', '.join(DATATYPES)}")
    inputs, outputs = ({tensor.name for tensor in known} for known in (session.get_inputs(), session.get_outputs()))
    if inputs != {spec.name for spec in signature.inputs} or not outputs >= {spec.name for spec in signature.outputs}:
        known = f"this one takes {', '.join(sorted(inputs))} and returns {', '.join(sorted(outputs))}"
        raise LoadFailed(f"{name}: its contract is of another model: {known}")


def _require_preprocessing(predictor: Predictor, name: str) -> None:
    """Raise `LoadFailed` unless a blank image can be made an input here; features may need another package."""
    how = predictor.signature.preprocessing
    if how is None or not predictor.takes_images:
        return
    try:
        predictor.inputs_of([np.zeros((how.height, how.width, len(how.mean)), np.uint8)])
    except ModuleNotFoundError as error:
        fix = f"Fix: {install_command('sklearn')}"
        raise LoadFailed(f"{name}: its preprocessing needs {error.name}. {fix}") from error


def _joins(signature: Signature) -> bool:
    """Return whether requests can share a call: the first axis of everything is dynamic."""
    tensors = (*signature.inputs, *signature.outputs)
    return all(spec.shape and isinstance(spec.shape[0], str) for spec in tensors)


def _seconds_by_rows(predictor: Predictor, samples: NamedArrays) -> dict[int, float]:
    """Return the latencies of the confirming race, or measure them here where the bundle has none."""
    if latencies := predictor.contract.latencies:
        return {entry.batch: entry.median_ms / 1000 for entry in latencies}
    predictor.run(samples_in_turns(samples, 1), 1)  # the first call is slow
    return measured_seconds(lambda rows: predictor.run(samples_in_turns(samples, rows), rows))


def _seconds_of_a_call(predictor: Predictor, samples: NamedArrays) -> dict[int, float]:
    """Measure one call of a model whose batch is not free."""
    count, array = len(next(iter(samples.values()))), next(iter(samples.values()))
    shape = predictor.signature.inputs[0].shape
    fixed = shape[0] if shape and isinstance(shape[0], int) and array.ndim == len(shape) else 1
    predictor.run(samples)
    return {1: time_calls(lambda: predictor.run(samples))[0][0] / 1000 / -(-count // fixed)}


def _plain_call(predictor: Predictor) -> Callable[[NamedArrays], NamedArrays]:
    """Return a function that runs the model on inputs as they are, without a batch axis."""
    session = predictor.session
    names = tensor_output_names(session)

    def call(inputs: NamedArrays) -> NamedArrays:
        try:
            return dict(zip(names, map(np.asarray, session.run(names, inputs)), strict=True))
        except Exception as error:  # the runtime's own exceptions share no public base
            raise StageError(one_line(error)) from error

    return call


def _batched_call(predictor: Predictor, max_batch: int) -> Callable[[NamedArrays], NamedArrays]:
    """Return a function that runs the model on rows; what is no plain call is left to `Predictor.run`."""
    plain = _plain_call(predictor)
    types = {spec.name: np.dtype(spec.dtype) for spec in predictor.signature.inputs}

    def call(inputs: NamedArrays) -> NamedArrays:
        rows = len(next(iter(inputs.values())))
        if rows <= max_batch and all(inputs[name].dtype == dtype for name, dtype in types.items()):
            outputs = plain(inputs)
            if all(array.shape[:1] == (rows,) for array in outputs.values()):
                return outputs
        return predictor.run(inputs, max_batch)

    return call
