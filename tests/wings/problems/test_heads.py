"""Outputs with labels of their own are judged by their own metric."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pandas as pd
import pytest

from configs.brought_model import infer_config
from gauntlet.core.artifact import Store
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.signature import Signature
from gauntlet.datasets.golden import REAL, Golden, GoldenCase
from gauntlet.datasets.npz_arrays import NpzArrays
from gauntlet.datasets.splits import ArraySplit, read_npz_split
from gauntlet.runtime.session import open_session
from tasks.accuracy import AccuracyConfig, accuracy
from wings.problems.heads import compare_heads
from wings.python_api.objects import samples_file

SIGNATURE = Signature(inputs=(), outputs=(), primary_output="color", layout="none", labels=("red", "green"))
HEADS = """
<ir_version: 9, opset_import: ["" : 18]>
heads (float[batch, 4] x) => (float[batch, 2] shape, float[batch, 2] color, float[batch, 1] price)
<float[4, 2] a = {1, -1, 2, 0, 0, 1, -1, 2}, float[4, 2] b = {0, 1, 1, 0, 2, -1, -1, 1}, float[4, 1] c = {1, 2, 3, 4}> {
    shape = MatMul(x, a)
    color = MatMul(x, b)
    price = MatMul(x, c)
}
"""


def samples(count: int = 200) -> dict[str, np.ndarray]:
    """Return inputs and the truth of all three outputs, which the model above predicts nearly right."""
    rng = np.random.default_rng(0)
    x = rng.standard_normal((count, 4)).astype(np.float32)
    noisy = x + rng.normal(0, 0.1, x.shape)
    a, b = np.array([[1, -1], [2, 0], [0, 1], [-1, 2]]), np.array([[0, 1], [1, 0], [2, -1], [-1, 1]])
    truth = {"labels": (noisy @ b).argmax(1), "labels_shape": (noisy @ a).argmax(1)}
    return {"x": x, **truth, "labels_price": noisy @ [1, 2, 3, 4]}


def golden() -> tuple[Golden, ArraySplit]:
    """Return the outputs of the model above, and the samples."""
    arrays = samples()
    x, labels = arrays["x"], arrays.pop("labels")
    session = open_session(onnx.parser.parse_model(HEADS).SerializeToString())
    outputs = dict(zip(("shape", "color", "price"), session.run(None, {"x": x}), strict=True))
    heads = {"shape": arrays["labels_shape"], "price": arrays["labels_price"]}
    case = GoldenCase({"x": x[:8]}, {name: output[:8] for name, output in outputs.items()})
    return Golden({REAL: case}, outputs, labels), ArraySplit({"x": x}, labels, heads)


@pytest.mark.parametrize(("broken", "by"), [("", set()), ("shape", {"shape"}), ("price", {"price"})])
def test_ruined_head_is_refused_by_its_own_gate(broken: str, by: set[str], tmp_path: Path, workspace: Any) -> None:
    space, (reference, split) = workspace(), golden()
    reference.save(tmp_path / "golden.npz")
    ruined = HEADS.replace(f"{broken} = MatMul(x,", f"y = Abs(x)\n    {broken} = MatMul(y,") if broken else HEADS
    SIGNATURE.write(proto := onnx.parser.parse_model(ruined))
    onnx.save(proto, tmp_path / "candidate.onnx")
    report = accuracy(
        AccuracyConfig(min_sqnr_db=-100, min_values_sqnr_db=-100),
        space,
        model=space.store_file(tmp_path / "candidate.onnx"),
        golden=space.store_file(tmp_path / "golden.npz"),
        test=space.store_file(split.save(tmp_path, "test")),
    )
    assert {name: head.metric for name, head in report.facts.heads.items()} == {"shape": "accuracy", "price": "r2"}
    assert report.facts.quality()["quality.price.r2"] == report.facts.heads["price"].accuracy
    failed = {check.name for check in report.checks if check.blocks and "max_accuracy_drop" in check.name}
    assert failed == {f"accuracy.{head}.max_accuracy_drop" for head in by}


def test_noise_of_a_head_with_labels_is_limited_as_that_of_a_prediction() -> None:
    reference, split = golden()
    heads = compare_heads(reference, SIGNATURE, reference.test_outputs, split.heads)
    assert all(output.read for head in heads.values() for output in head.outputs)


@pytest.mark.parametrize(
    ("output", "labels", "what"),
    [
        ("color", np.zeros(200, int), "'labels' are those of the primary output, 'color'.* Fix: rename"),
        ("size", np.zeros(200, int), r"those of another one \(shape, price\)"),
        ("shape", np.zeros((200, 7)), r"labels_shape: predictions have shape \(200, 2\), the truth \(200, 7\)"),
        ("price", np.zeros((200, 3, 3), int), "no problem has such labels and outputs.* Fix: number the classes"),
    ],
)
def test_labels_that_fit_no_further_output_are_refused(output: str, labels: np.ndarray, what: str) -> None:
    reference = golden()[0]
    with pytest.raises(StageError, match=what):
        compare_heads(reference, SIGNATURE, reference.test_outputs, {output: labels})


def test_whole_numbers_are_values_of_an_output_with_one_number_a_sample() -> None:
    reference, split = golden()
    labels = np.round(100 * split.heads["price"]).astype(np.int64)
    assert compare_heads(reference, SIGNATURE, reference.test_outputs, {"price": labels})["price"].metric == "r2"


def test_labels_of_heads_stay_with_their_samples(tmp_path: Path) -> None:
    arrays = samples()
    np.savez(tmp_path / "samples.npz", **arrays)
    price = dict(zip(map(tuple, arrays["x"]), arrays["labels_price"], strict=True))
    for name, split in NpzArrays(path=tmp_path / "samples.npz").load().splits.items():
        stored = read_npz_split(split.save(tmp_path, name))
        assert [price[tuple(x)] for x in stored.inputs["x"]] == stored.heads["price"].tolist()
    np.savez(tmp_path / "samples.npz", x=arrays["x"], labels_price=arrays["labels_price"])
    with pytest.raises(StageError, match=r"labels_price without labels. Fix: rename .* train.primary_output"):
        NpzArrays(path=tmp_path / "samples.npz").load()


def test_columns_of_a_table_are_labels_of_heads_and_the_rest_is_the_primary_output(tmp_path: Path) -> None:
    onnx.save(onnx.parser.parse_model(HEADS), model := tmp_path / "heads.onnx")
    arrays = samples()
    table = pd.DataFrame(arrays.pop("x"), columns=list("abcd")).assign(**arrays)
    table.to_csv(tmp_path / "table.csv", index=False)
    stored = Path(samples_file(tmp_path / "table.csv", str(model), Store(tmp_path / "store")))
    config = infer_config(model, stored, None, {}).values
    assert config["train"]["primary_output"] == "color"
    assert {*NpzArrays.model_validate(config["data"]).load().splits["test"].heads} == {"shape", "price"}
    table.rename(columns={"labels_price": "labels_cost"}).to_csv(tmp_path / "table.csv", index=False)
    stored = Path(samples_file(tmp_path / "table.csv", str(model), Store(tmp_path / "store")))
    with pytest.raises(ConfigError, match=r"the model has no output 'cost'.* outputs: shape, color, price"):
        infer_config(model, stored, None, {})
