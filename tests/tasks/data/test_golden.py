"""The source's word: what is saved is what is read."""

from pathlib import Path

import numpy as np

from tasks.data.golden import Golden, head
from tasks.sources import torch as source


def test_golden_is_the_same_when_it_went_through_a_file(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    array = random.standard_normal
    golden = Golden(
        inputs={"input": array((3, 2)), "scope/other": array((3, 1))},
        outputs={"logits": np.array([[np.nan, np.inf], [0, 1], [2, 3]])},
        labels=np.array([0, 1, 0]),
        random_inputs={"input": array((2, 2))},
        random_outputs={"logits": array((2, 2))},
        trace={"layer1.0.conv1": array((1, 4)), "layer1.0.relu_1": array((1, 4))},
    )
    golden.save(tmp_path / "golden.npz")
    again = Golden.load(tmp_path / "golden.npz")
    for group in ("inputs", "outputs", "random_inputs", "random_outputs", "trace"):
        before, after = getattr(golden, group), getattr(again, group)
        assert before.keys() == after.keys()
        assert all(np.array_equal(before[name], after[name], equal_nan=True) for name in before)
    assert np.array_equal(again.labels, golden.labels)


def test_head_takes_the_first_samples_of_each_when_there_are_several() -> None:
    arrays = head({"a": np.arange(5), "b": np.arange(10).reshape(5, 2)}, 2)
    assert {name: array.tolist() for name, array in arrays.items()} == {"a": [0, 1], "b": [[0, 1], [2, 3]]}


def test_golden_is_what_the_saved_network_answers_when_it_is_asked_again(trained) -> None:
    golden = Golden.load(trained.store.path(trained.golden))
    network, signature = source.load(trained.store.path(trained.artifacts["source"]))
    answers = source.predict(network, golden.inputs["input"])
    assert np.array_equal(answers, golden.outputs["logits"])
    assert np.array_equal(source.predict(network, golden.random_inputs["input"]), golden.random_outputs["logits"])
    assert signature.outputs[0].shape == ("batch", 10)
    leaves = {name for name, module in network.named_modules() if not list(module.children())}
    assert golden.trace.keys() == leaves
    last = golden.trace["14"]
    np.testing.assert_allclose(last, golden.outputs["logits"][:1], rtol=1e-4, atol=1e-5)
