"""The source's word: what is saved is what is read."""

from pathlib import Path

import numpy as np
import pytest

from gauntlet.core.arrays import NamedArrays
from gauntlet.core.errors import StageError
from gauntlet.datasets.golden import (
    RANDOM_SAMPLES,
    REAL_SAMPLES,
    Golden,
    GoldenCase,
    predict_split,
    random_like,
    record_golden,
)
from gauntlet.datasets.splits import ArraySplit

source = pytest.importorskip("frameworks.torch.network")


def equal(before: NamedArrays, after: NamedArrays) -> bool:
    same = (np.array_equal(before[n], after[n], equal_nan=before[n].dtype.kind == "f") for n in before)
    return before.keys() == after.keys() and all(same)


def test_golden_is_the_same_when_it_went_through_a_file(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal
    golden = Golden(
        cases={
            "real": GoldenCase({"input": array((3, 2)), "scope/other": array((3, 1))}, {"logits": array((3, 4))}),
            "random": GoldenCase({"input": array((2, 2)), "scope/other": array((2, 1))}, {"logits": array((2, 4))}),
            "16x24": GoldenCase({"text": np.array(["a", "b"])}, {"scope/out": np.array([[np.nan, np.inf]])}),
        },
        test_outputs={"logits": np.array([[np.nan, np.inf], [0, 1], [2, 3]]), "scope/names": np.array(["x", "y", "z"])},
        labels=np.array([0, 1, 0]),
        module_outputs={"layer1.0.conv1": array((1, 4)), "layer1/relu_1": array((1, 4))},
    )
    golden.save(tmp_path / "golden.npz")
    again = Golden.load(tmp_path / "golden.npz")
    assert again.cases.keys() == golden.cases.keys()
    for title, case in golden.cases.items():
        assert equal(case.inputs, again.cases[title].inputs)
        assert equal(case.outputs, again.cases[title].outputs)
    assert equal(golden.test_outputs, again.test_outputs)
    assert equal(golden.module_outputs, again.module_outputs)
    assert np.array_equal(again.labels, golden.labels)
    assert equal(again.real.inputs, golden.cases["real"].inputs)


def test_ask_lets_the_source_answer_everything_in_batches() -> None:
    sizes: list[int] = []

    def predict(inputs: NamedArrays) -> NamedArrays:
        sizes.append(len(inputs["x"]))
        return {"sum": inputs["x"].sum(1), "whole": inputs["ids"] * 2}

    rows = 150
    test = ArraySplit(
        {"x": np.random.default_rng(0).standard_normal((rows, 3)), "ids": np.arange(rows) % 7}, np.arange(rows)
    )
    golden = record_golden(predict, test, sizes={"long": {"x": np.ones((2, 9)), "ids": np.zeros(2)}})
    assert sizes == [REAL_SAMPLES, RANDOM_SAMPLES, 2, 64, 64, 22]
    assert list(golden.cases) == ["real", "random", "long"]
    assert np.array_equal(golden.test_outputs["sum"], test.inputs["x"].sum(1))
    assert np.array_equal(golden.real.outputs["whole"], test.inputs["ids"][:REAL_SAMPLES] * 2)
    assert golden.cases["long"].outputs["sum"].tolist() == [9, 9]
    assert np.array_equal(golden.labels, test.labels)
    assert equal(golden.test_outputs, predict_split(predict, test, batch_size=7))


def test_random_inputs_are_normal_numbers_or_values_that_occur() -> None:
    real: NamedArrays = {
        "x": np.full((5, 2, 3), 9, np.float32),
        "ids": np.array([[3, 8], [5, 5], [8, 3]], np.int32),
        "text": np.array(["a", "bb", "c"]),
    }
    made, again, other = random_like(real, 0), random_like(real, 0), random_like(real, 1)
    assert {n: (a.shape, a.dtype) for n, a in made.items()} == {
        n: ((RANDOM_SAMPLES, *a.shape[1:]), a.dtype) for n, a in real.items()
    }
    assert abs(float(made["x"].mean()) - 9) < 0.3  # constant data: the spread is taken to be 1
    assert 0.7 < float(made["x"].std()) < 1.3
    assert set(made["ids"].ravel()) <= {3, 5, 8}
    assert set(made["text"]) <= {"a", "bb", "c"}
    assert equal(made, again)
    assert not equal(made, other)
    assert np.unique(random_like(real, 0, normal=False)["x"]).tolist() == [9]


def test_observed_values_stay_in_their_feature_when_features_have_other_ranges() -> None:
    rng = np.random.default_rng(0)
    table = np.stack([rng.integers(0, 5, 40), rng.integers(500, 1000, 40)], axis=1)
    made = random_like({"ids": table}, 0)["ids"]
    assert all(set(made[:, column]) <= set(table[:, column]) for column in range(2))
    assert len({tuple(row) for row in made.tolist()} - {tuple(row) for row in table.tolist()}) > RANDOM_SAMPLES // 2


def test_random_inputs_have_the_mean_and_the_spread_of_the_real_ones() -> None:
    pixels: NamedArrays = {"x": np.random.default_rng(0).uniform(0, 255, (9, 3, 8, 8)).astype(np.float32)}
    made = random_like(pixels, 0)["x"]
    assert made.mean() == pytest.approx(pixels["x"].mean(), rel=0.05)
    assert made.std() == pytest.approx(pixels["x"].std(), rel=0.05)
    holes: NamedArrays = {"x": np.array([[np.nan, 1.0], [2.0, np.inf]])}
    assert np.isfinite(random_like(holes, 0)["x"]).all()


def test_golden_is_what_the_saved_network_answers_when_it_is_asked_again(trained) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    network, _ = source.load_network(trained.store.path(trained.artifacts["source"]))
    for case in golden.cases.values():
        assert np.array_equal(source.predict(network, case.inputs["input"]), case.outputs["logits"])
    assert np.array_equal(
        golden.test_outputs["logits"][: len(golden.real.outputs["logits"])], golden.real.outputs["logits"]
    )
    leaves = {name for name, module in network.named_modules() if not list(module.children())}
    assert golden.module_outputs.keys() == leaves
    np.testing.assert_allclose(golden.module_outputs["14"], golden.real.outputs["logits"][:1], rtol=1e-4, atol=1e-5)


def test_random_texts_have_letters_of_other_scripts_unless_the_source_refuses_them() -> None:
    texts = np.array([f"text number {place}" for place in range(8)])
    split = ArraySplit({"text": texts, "place": np.array(["New York", "San Jose"] * 4)})

    def predict(inputs: NamedArrays) -> NamedArrays:
        return {"y": np.char.str_len(inputs["text"])}

    def refuse(inputs: NamedArrays) -> NamedArrays:
        if not {*inputs["text"].tolist()} <= {*texts.tolist()}:
            raise StageError("unknown")
        return predict(inputs)

    made, kept = (record_golden(each, split).cases["random"].inputs for each in (predict, refuse))
    assert {"\u00e9", "\u0301", "\u200b", "\u65e5"} <= {*"".join(made["text"].tolist())}
    assert {*kept["text"].tolist()} <= {*texts.tolist()}
    assert {*made["place"].tolist()} == {"New York", "San Jose"}
