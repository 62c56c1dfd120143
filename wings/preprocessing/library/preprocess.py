"""Write the preprocessing of images into the winner's graph, as one more candidate: its input is the uint8 image.

Resizing stays with the caller: ONNX Runtime's antialiased `Resize` (1.31) is not equal to Pillow's, and images of
different sizes could not share a call.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import onnx.utils
from pydantic import Field

from gauntlet.core.arrays import Array, NamedArrays
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import GateFailed
from gauntlet.core.facts import Facts
from gauntlet.core.frozen import Number
from gauntlet.core.report import Check, Report
from gauntlet.core.signature import Signature
from gauntlet.core.workspace import Workspace
from gauntlet.datasets import read_split
from gauntlet.datasets.golden import REAL, Golden, GoldenCase
from gauntlet.datasets.image_arrays import ImageArraySplit
from gauntlet.datasets.image_files import ImageFileSplit
from gauntlet.datasets.splits import ArraySplit, Split
from gauntlet.images.preprocessing import fitting_inputs, restored_pixels
from gauntlet.metrics.error_metrics import max_abs_error, max_rel_error
from gauntlet.metrics.output_comparison import OutputDifference, Tolerances, output_difference
from gauntlet.onnx_model.graph import required_inputs
from gauntlet.onnx_model.model_file import copy_model, read_for_editing, read_graph, write_model
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from wings.preprocessing.library.image_input import add_image_input, image_input_obstacle

MAX_INPUT_ERROR = 1e-6
"""Of the normalized input, over its largest magnitude: both sides compute in float32, in the same order."""
MAX_ROUNDING = 0.51
"""Levels of 255 between an input and the image that it is turned back to: rounding alone is half a level."""


class PreprocessFacts(Facts):
    """The preprocessing in the graph, against the same on the host."""

    image_input: str = Field(description="name of the new input: uint8, (batch, height, width, channels)")
    operators: tuple[str, ...] = Field(description="before the network, in order")
    outside: str = Field(description="what stays with the caller")
    input_error: Number = Field(description="largest difference of the normalized input, over its largest magnitude")
    rounding: Number = Field(description="largest difference of a test input from its image, in levels of 255")
    comparisons: tuple[OutputDifference, ...] = Field(description="outputs from the same images, random and real")


def preprocess(
    limits: Tolerances, workspace: Workspace, *, model: Artifact, golden: Artifact, test: Artifact
) -> Report[PreprocessFacts]:
    """Build the model that takes images, and prove that it computes what the model behind the preprocessing does.

    Besides `model`, the artifacts are `golden` and `test` with images as inputs, for the stages behind this one.

    Raises:
        GateFailed: when the preprocessing cannot be part of the graph.
    """
    before, path = read_graph(workspace.path(model)), workspace.folder / "model.onnx"
    source = Signature.read(before)
    if obstacle := image_input_obstacle(before, source):
        raise GateFailed(f"the preprocessing stays outside of the graph: {obstacle}")
    copy_model(workspace.path(model), path)
    proto = read_for_editing(path)
    name = add_image_input(proto, source).inputs[0].name
    operators = [node.op_type for node in proto.graph.node[: len(proto.graph.node) - len(before.graph.node)]]
    kept = workspace.store_file(path, *write_model(proto, path))
    reference = Golden.load(workspace.path(golden))
    images = pixel_golden(reference, source, name)
    images.save(workspace.folder / "golden.npz")
    split = pixel_split(read_split(workspace.path(test)), source, name).save(workspace.folder, "test")
    proof = prove(workspace.path(model), workspace.path(kept), images.real.inputs[name], limits)
    rounding = _rounding(reference.real.inputs, source)
    facts = PreprocessFacts(
        image_input=name,
        operators=tuple(operators),
        outside="decoding and resizing: ONNX's Resize is not proven equal to Pillow's",
        input_error=proof.input_error,
        rounding=rounding,
        comparisons=proof.rows,
    )
    fix = "the test inputs are no images of 256 levels; leave preprocess_in_graph out"
    detail = "test inputs against the uint8 images that they are turned back to"
    checks = (
        *proof.checks(limits),
        Check.of("preprocess.max_rounding", rounding, "<=", MAX_ROUNDING, detail, fix, unit="levels"),
    )
    artifacts = {
        "model": kept,
        "golden": workspace.store_file(workspace.folder / "golden.npz"),
        "test": workspace.store_file(split),
    }
    return Report(facts=facts, checks=checks, artifacts=artifacts)


@dataclass(frozen=True)
class Proof:
    """How a model that takes images differs from the one behind the preprocessing on the host."""

    input_error: float
    rows: tuple[OutputDifference, ...]

    def checks(self, limits: Tolerances) -> tuple[Check, ...]:
        """Return the checks of the normalized input, and of the outputs within the limits of the stage `numerics`."""
        fix = "report it: the graph's preprocessing is not the contract's"
        wrong = [row for row in self.rows if not row.within(limits)]
        detail = wrong[0].text(limits) if wrong else ""
        return (
            Check.of("preprocess.max_input_error", self.input_error, "<=", MAX_INPUT_ERROR, "", fix),
            Check.of("preprocess.wrong_outputs", len(wrong), "==", 0, detail, fix, unit="outputs"),
        )


def prove(before: Path, after: Path, images: Array, limits: Tolerances) -> Proof:
    """Compare a model that takes images with the one that it was made from, on random and on real images.

    `images` have shape (n, height, width, channels), uint8. What the host computes follows from the signature of the
    model `before`.
    """
    source, proto = Signature.read(read_graph(before)), read_graph(after)
    name, old = required_inputs(proto.graph)[0].name, source.inputs[0].name
    real = images[: limits.samples]
    images = np.concatenate([_random_images(limits.samples, real.shape[1:]), real])
    host, graph = open_session(before), open_session(after)
    inference = batched_inference(graph, {name: images})
    feed = inference.feed(0, inference.batch(len(images)))
    first = open_session(onnx.utils.Extractor(proto).extract_model([name], [old]).SerializeToString())
    [normalized] = first.run([old], feed)
    rows = []
    for batch in dict.fromkeys(inference.batch(size) for size in limits.batch_sizes):  # dynamic ranges depend on it
        expected = batched_inference(host, fitting_inputs({name: images}, source)).run(batch)
        actual = inference.run(batch)
        rows += [
            output_difference("images", batch, key, actual[key], expected[key], is_class=key == source.class_output)
            for key in expected
        ]
    return Proof(max_rel_error(normalized, fitting_inputs(feed, source)[old]), tuple(rows))


def _random_images(count: int, shape: tuple[int, ...]) -> npt.NDArray[np.uint8]:
    """Return random images; the first one has every level, as far as it has pixels."""
    images = np.random.default_rng(0).integers(0, 256, (count, *shape), np.uint8)
    images[0] = np.resize(np.arange(256, dtype=np.uint8), shape)
    return images


def _rounding(inputs: NamedArrays, source: Signature) -> float:
    """Return how far inputs are from the uint8 images that they are turned back to, in levels of 255."""
    how, [(old, expected)] = source.preprocessing, inputs.items()
    assert how is not None
    normalized = fitting_inputs(pixel_inputs(inputs, source, "image"), source)[old]
    std = np.reshape(np.array(how.std), (-1, 1, 1) if source.layout == "NCHW" else (-1,))
    return max_abs_error(255 * std * normalized, 255 * std * expected)


def pixel_split(split: Split, source: Signature, name: str) -> Split:
    """Return a split with images, uint8, shape (n, height, width, channels), as the input `name`.

    Stored images and image files are still read when they are needed; inputs that are stored normalized, as `source`
    describes them, are turned back and rounded.
    """
    if isinstance(split, ImageArraySplit | ImageFileSplit):
        how = split.transform.how.replace(in_graph=True)
        return replace(split, transform=split.transform.replace(how=how, layout="NHWC", name=name))
    heads = split.heads if isinstance(split, ArraySplit) else {}
    return ArraySplit(pixel_inputs(split.take(slice(None)), source, name), split.labels, heads)


def pixel_inputs(inputs: NamedArrays, source: Signature, name: str) -> NamedArrays:
    """Return the images that normalized inputs were, rounded to uint8."""
    assert source.preprocessing is not None
    images = restored_pixels(inputs[source.inputs[0].name], source.preprocessing, source.layout)
    return {name: np.ascontiguousarray(images)}


def pixel_golden(golden: Golden, source: Signature, name: str) -> Golden:
    """Return the source's outputs with the real inputs as images; random inputs are no images, and are left out."""
    real = GoldenCase(pixel_inputs(golden.real.inputs, source, name), golden.real.outputs)
    return Golden({REAL: real}, golden.test_outputs, golden.labels)
