"""scikit-learn to ONNX: the same answers for many kinds of estimators, the same bytes, and gates that see faults."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from sklearn.cluster import DBSCAN
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.manifold import Isomap
from sklearn.neighbors import RadiusNeighborsClassifier

from frameworks.sklearn.classifier_training import SklearnTraining
from frameworks.sklearn.skl2onnx import Skl2Onnx
from gauntlet.core.errors import StageError
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit
from gauntlet.runtime.session import open_session

from .conftest import CLASSES, FEATURES, LABELS, NAMES, POINTS, Exported


@pytest.mark.parametrize("opset", [13, 18, 22])
def test_export_names_its_batch_and_its_tensors_when_any_opset_is_asked_for(exported, opset: int) -> None:
    model = exported(LogisticRegression().fit(POINTS, LABELS), opset=opset)
    graph = onnx.load(model.path).graph
    axes = {
        t.name: [d.dim_param or d.dim_value for d in t.type.tensor_type.shape.dim]
        for t in (*graph.input, *graph.output)
    }
    assert axes == {"features": ["batch", FEATURES], "label": ["batch"], "probabilities": ["batch", CLASSES]}
    assert [(o.domain, o.version) for o in onnx.load(model.path).opset_import if not o.domain] == [("", opset)]
    for report in model.gates():
        report.raise_if_blocked()


def test_export_has_the_same_bytes_when_repeated(exported) -> None:
    first, again = exported(), exported()
    assert first.model == again.model


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (Isomap(n_components=2), r"skl2onnx cannot convert Isomap: .*supported_converters"),
        (HistGradientBoostingClassifier(max_iter=2, categorical_features=[0]), "categories of a Hist.* Fix: encode"),
        (RadiusNeighborsClassifier(3.0, outlier_label=0), r"outside the radius.*Fix: "),
        (DBSCAN(), "DBSCAN can neither predict nor transform"),
    ],
)
def test_estimator_that_cannot_be_converted_is_refused_in_a_sentence(exported, estimator: Any, message: str) -> None:
    with pytest.raises(StageError, match=message):
        exported(estimator.fit(POINTS, LABELS % 2), labels=False)


def test_booster_in_an_estimator_is_refused_with_the_way_to_bring_it(exported) -> None:
    lightgbm = pytest.importorskip("lightgbm")
    estimator = lightgbm.LGBMClassifier(n_estimators=2, verbose=-1).fit(POINTS, LABELS)
    with pytest.raises(StageError, match=r"cannot convert LGBMClassifier.* Fix: save the booster itself"):
        exported(estimator)


def test_export_is_refused_in_a_sentence_when_an_input_has_a_strange_type(exported) -> None:
    with pytest.raises(StageError, match=r"input 'features' is uint8; skl2onnx takes float32, int64"):
        exported(LogisticRegression().fit(POINTS, LABELS), {"features": np.abs(POINTS).astype(np.uint8)})


def test_numerics_gate_fails_when_the_onnx_model_is_of_another_training(exported) -> None:
    one = exported(LogisticRegression(C=1).fit(POINTS, LABELS))
    other = exported(LogisticRegression(C=2).fit(POINTS, LABELS))
    mixed = Exported(other.out, other.model, one.golden, one.signature, one.report)
    mixed.out.store.root.joinpath(one.golden.path).parent.mkdir(parents=True, exist_ok=True)
    mixed.out.path(one.golden).write_bytes(one.out.path(one.golden).read_bytes())
    failures = [check.name for check in mixed.gates()[1].failures]
    assert "numerics.max_rel_error" in failures


def test_numerics_gate_fails_when_a_label_differs_though_probabilities_agree(exported) -> None:
    model = exported(LogisticRegression().fit(POINTS, LABELS))
    golden = Golden.load(model.out.path(model.golden))
    golden.real.outputs["label"][0] += 1
    path = model.out.folder / "golden.npz"
    golden.save(path)
    changed = Exported(model.out, model.model, model.out.store_file(path), model.signature, model.report)
    assert "numerics.min_top1_agreement" in [check.name for check in changed.gates()[1].failures]


@pytest.fixture(scope="module")
def svc(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """The source and an ONNX session of one trained model."""
    from frameworks.sklearn import estimator as source
    from gauntlet.core.artifact import Store

    out = Workspace(Store(tmp_path_factory.mktemp("store")), tmp_path_factory.mktemp("svc"))
    split = ArraySplit({"features": POINTS}, LABELS)
    spec = TensorSpec(name="features", dtype="float32", shape=("batch", FEATURES))
    signature = Signature(inputs=(spec,), outputs=(), layout="none", labels=tuple(NAMES))
    train = SklearnTraining().fit(dict.fromkeys(("train", "validation", "test"), split), signature, out)
    model = out.path(train.artifacts["model"])
    Skl2Onnx().write(model, train.facts.signature, out.folder / "model.onnx")
    return source.load(model, None), open_session(out.folder / "model.onnx")


@settings(max_examples=40)
@given(arrays.arrays(np.float32, (3, FEATURES), elements=st.floats(-8, 8, width=32)))
def test_probabilities_agree_and_sum_to_one_when_inputs_are_anything(svc, inputs: np.ndarray) -> None:
    estimator, session = svc
    actual = session.run(None, {"features": inputs})
    expected = estimator.predict_proba(inputs)
    np.testing.assert_allclose(actual[1], expected, rtol=0, atol=1e-5)
    np.testing.assert_allclose(actual[1].sum(1), 1, atol=1e-5)
    clear = np.diff(np.sort(expected, axis=1)[:, -2:])[:, 0] > 1e-4  # an exact tie may go either way
    assert np.array_equal(actual[0][clear], estimator.predict(inputs)[clear])
