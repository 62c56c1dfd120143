"""Both TensorFlow exporters: the framework model's outputs in either layout, the signature's names, no stray input."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from frameworks.keras.brought_model import KerasModel, SavedModelFolder
from frameworks.keras.exporter import SavedModel, Tf2Onnx
from frameworks.keras.tensorflow_setup import start_tensorflow
from gauntlet.core.artifact import Artifact
from gauntlet.core.errors import StageError
from gauntlet.core.report import Report
from gauntlet.core.signature import Signature, TensorSpec
from gauntlet.core.workspace import Workspace
from gauntlet.datasets.golden import Golden
from gauntlet.datasets.splits import ArraySplit
from gauntlet.runtime.batched_inference import batched_inference
from gauntlet.runtime.session import open_session
from tasks.export import export
from tasks.numerics import NumericsConfig, numerics
from tasks.structure import StructureConfig, structure
from tasks.train.facts import TrainFacts
from wings.inspection.library.diagnosis import diagnose, fix
from wings.inspection.library.diagnosis.findings import CallerHints

pytestmark = pytest.mark.slow
EXPORTERS = (Tf2Onnx(), SavedModel())
PICTURES = np.random.default_rng(0).standard_normal((40, 8, 8, 3)).astype(np.float32)
Bring = Callable[..., tuple[Report[TrainFacts], Workspace]]


def network() -> Any:
    """Return what trips exporters: constants of a Normalization, batch norms, a depthwise step, and a gate."""
    keras = start_tensorflow()
    layers = keras.layers
    pixels = keras.Input((8, 8, 3), name="pixels")
    x = layers.Normalization(mean=[0.1, 0.2, 0.3], variance=[0.5, 0.6, 0.7])(layers.Rescaling(2.0)(pixels))
    x = layers.Conv2D(8, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.Activation("silu")(layers.BatchNormalization()(x))
    x = layers.DepthwiseConv2D(3, padding="same")(x)
    gate = layers.Dense(8, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.GlobalAveragePooling2D()(layers.Multiply()([x, gate]))
    model = keras.Model(pixels, layers.Dense(5, name="scores")(layers.Dropout(0.3)(x)))
    rng = np.random.default_rng(1)
    model.set_weights([w * rng.uniform(0.5, 1.5, w.shape) + rng.uniform(0, 0.1, w.shape) for w in model.get_weights()])
    return model


@pytest.fixture(scope="module")
def model_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "mine.keras"
    network().save(path)
    return path


@pytest.fixture(scope="module")
def model_folder(model_file: Path) -> Path:
    start_tensorflow().saving.load_model(model_file).export(model_file.parent / "saved", verbose=False)
    return model_file.parent / "saved"


@pytest.fixture
def bring(workspace: Callable[..., Workspace]) -> Bring:
    def run(
        config: KerasModel | SavedModelFolder, inputs: dict[str, np.ndarray], layout: str = "NHWC"
    ) -> tuple[Report[TrainFacts], Workspace]:
        specs = tuple(TensorSpec(name=n, dtype=a.dtype.name, shape=("batch", *a.shape[1:])) for n, a in inputs.items())
        out = workspace()
        signature = Signature(inputs=specs, outputs=(), layout=layout)
        return config.fit({"test": ArraySplit(inputs)}, signature, out), out

    return run


def exported(
    config: Tf2Onnx | SavedModel, source: Report[TrainFacts], out: Workspace
) -> tuple[Artifact, onnx.ModelProto]:
    report = export(
        config,
        out,
        model=source.artifacts["model"],
        signature=source.facts.signature,
        golden=source.artifacts["golden"],
    )
    model = report.artifacts["model"]
    return model, onnx.load(out.path(model))


def pass_the_gates(source: Report[TrainFacts], model: Artifact, out: Workspace) -> None:
    structure(StructureConfig(), out, model=model).raise_if_blocked()
    numerics(NumericsConfig(max_rel_error=1e-5), out, model=model, golden=source.artifacts["golden"]).raise_if_blocked()


@pytest.mark.parametrize("layout", ["NHWC", "NCHW"])
@pytest.mark.parametrize("form", ["file", "folder"])
@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda e: e.kind)
def test_export_answers_as_the_source_at_any_batch_size_in_the_layout_of_the_data(
    bring: Bring, model_file: Path, model_folder: Path, exporter: Tf2Onnx | SavedModel, form: str, layout: str
) -> None:
    config = KerasModel(model=model_file) if form == "file" else SavedModelFolder(trust=True, model=model_folder)
    inputs = {"input": PICTURES if layout == "NHWC" else np.ascontiguousarray(PICTURES.transpose(0, 3, 1, 2))}
    source, out = bring(config, inputs, layout)
    model, proto = exported(exporter, source, out)
    pass_the_gates(source, model, out)
    golden, session = Golden.load(out.path(source.artifacts["golden"])), open_session(out.path(model))
    for case in golden.cases.values():
        for batch in (1, 2, 3, 7):
            actual = batched_inference(session, case.inputs).run(batch)
            for name, expected in case.outputs.items():
                np.testing.assert_allclose(actual[name], expected, rtol=0, atol=1e-5)
    (value,) = proto.graph.input
    axes = [axis.dim_param or axis.dim_value for axis in value.type.tensor_type.shape.dim]
    assert (value.name, axes) == ("input", ["batch", 8, 8, 3] if layout == "NHWC" else ["batch", 3, 8, 8])
    assert Signature.read(proto) == source.facts.signature
    assert "unk__" not in str(proto.graph.value_info) + str(proto.graph.output)


def pixel_network() -> Any:
    """A norm of a single pixel, and a transposed convolution whose size is unknown."""
    layers, pixels = start_tensorflow().layers, start_tensorflow().Input((8, 8, 3))
    x = layers.LayerNormalization()(layers.Conv2D(8, 8)(pixels))
    return start_tensorflow().Model(pixels, layers.Conv2DTranspose(4, 3, 2, "same")(layers.Dense(8)(x)))


def sequential_network() -> Any:
    keras = start_tensorflow()
    return keras.Sequential([keras.Input((8,)), keras.layers.Dense(16), keras.layers.Dense(3, name="scores")])


def activated_network() -> Any:
    """GELU, CELU and a grouped convolution."""
    layers, pixels = start_tensorflow().layers, start_tensorflow().Input((8, 8, 4))
    x = layers.Conv2D(8, 3, groups=2, padding="same", activation="gelu")(pixels)
    return start_tensorflow().Model(pixels, layers.Dense(6, activation="celu")(layers.Flatten()(x)))


@pytest.mark.parametrize(
    ("make", "suffix"),
    [
        (pixel_network, ".keras"),
        (sequential_network, ".keras"),
        (sequential_network, ".h5"),
        (activated_network, ".keras"),
    ],
)
@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda e: e.kind)
def test_export_answers_as_the_source_whatever_the_network_is_made_of(
    bring: Bring, tmp_path: Path, exporter: Tf2Onnx | SavedModel, make: Callable[[], Any], suffix: str
) -> None:
    network, path = make(), tmp_path / f"network{suffix}"
    network.save(path)
    values = np.random.default_rng(4).standard_normal((20, *network.input_shape[1:])).astype(np.float32)
    source, out = bring(KerasModel(model=path), {"input": values}, "NHWC" if values.ndim == 4 else "none")
    model, proto = exported(exporter, source, out)
    pass_the_gates(source, model, out)
    assert make != sequential_network or [value.name for value in proto.graph.output] == ["scores"]


def test_export_has_the_same_bytes_when_repeated_and_the_opset_that_is_asked_for(
    bring: Bring, model_file: Path
) -> None:
    source, out = bring(KerasModel(model=model_file), {"input": PICTURES})
    for kind in (Tf2Onnx, SavedModel):
        first, proto = exported(kind(opset=13), source, out)
        again, _ = exported(kind(opset=13), source, out)
        assert first == again
        assert proto.opset_import[0].version == 13
        pass_the_gates(source, first, out)


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda e: e.kind)
def test_export_keeps_names_apart_when_there_are_several_inputs_and_outputs(
    bring: Bring, tmp_path: Path, exporter: Tf2Onnx | SavedModel
) -> None:
    keras = start_tensorflow()
    # The order of the names differs from the order of the tensors, and an output is called as an input.
    words, side = keras.Input((4,), name="words", dtype="int32"), keras.Input((3,), name="side")
    x = keras.layers.Concatenate()([keras.layers.Flatten()(keras.layers.Embedding(9, 3)(words)), side])
    zebra, ape = keras.layers.Dense(2, name="zebra")(x), keras.layers.Dense(2, name="ape")(x)
    keras.Model([words, side], [zebra, ape]).save(tmp_path / "two.keras")
    rng = np.random.default_rng(2)
    inputs = {"side": rng.standard_normal((20, 3)).astype(np.float32), "words": rng.integers(0, 9, (20, 4))}
    source, out = bring(KerasModel(model=tmp_path / "two.keras"), inputs, "none")
    model, proto = exported(exporter, source, out)
    pass_the_gates(source, model, out)
    assert {value.name for value in proto.graph.input} == {"side", "words"}
    assert {value.name for value in proto.graph.output} == {"zebra", "ape"}


@pytest.mark.parametrize("form", ["other keys", "nested"])
def test_inputs_may_stand_in_any_structure(bring: Bring, tmp_path: Path, form: str) -> None:
    keras = start_tensorflow()
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    inputs = {"z": a, "c": b} if form == "other keys" else [a, [b]]
    keras.Model(inputs, keras.layers.Dense(4)(keras.layers.Concatenate()([a, b]))).save(tmp_path / "net.keras")
    rows = np.random.default_rng(3).standard_normal((12, 5)).astype(np.float32)
    source, out = bring(KerasModel(model=tmp_path / "net.keras"), {"a": rows[:, :3], "b": rows[:, 3:]}, "none")
    model, _ = exported(Tf2Onnx(), source, out)
    pass_the_gates(source, model, out)


def test_outputs_of_a_saved_model_are_in_order_and_may_be_called_as_its_input(bring: Bring, tmp_path: Path) -> None:
    start_tensorflow()
    import tensorflow as tf

    class Doubled(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="x")])
        def call(self, x: Any) -> Any:
            return {name: index * x for index, name in enumerate("yxdcba")}

    module = Doubled()
    tf.saved_model.save(module, str(tmp_path / "doubled"), signatures={"serving_default": module.call})
    rows = np.random.default_rng(3).standard_normal((12, 3)).astype(np.float32)
    source, out = bring(SavedModelFolder(trust=True, model=tmp_path / "doubled"), {"x": rows}, "none")
    assert [spec.name for spec in source.facts.signature.outputs] == [*"abcd", "x_out", "y"]
    model, _ = exported(SavedModel(), source, out)
    pass_the_gates(source, model, out)


@pytest.mark.parametrize(("exporter", "layout"), zip(EXPORTERS, ("NHWC", "NCHW"), strict=True))
def test_export_is_right_at_every_size_when_the_network_takes_any(
    bring: Bring, tmp_path: Path, exporter: Tf2Onnx | SavedModel, layout: str
) -> None:
    layers = start_tensorflow().layers
    pixels = start_tensorflow().Input((None, None, 3), name="pixels")
    x = layers.Conv2D(4, 3, strides=2, padding="same", activation="relu")(pixels)
    scores = layers.Dense(5)(layers.GlobalAveragePooling2D()(x))
    start_tensorflow().Model(pixels, [scores, x]).save(tmp_path / "any.keras")
    pictures = PICTURES if layout == "NHWC" else np.ascontiguousarray(PICTURES.transpose(0, 3, 1, 2))
    lengths = ({"pixels_1": 12, "pixels_2": 10}, {"pixels_1": 7})
    source, out = bring(KerasModel(model=tmp_path / "any.keras", lengths=lengths), {"input": pictures}, layout)
    model, proto = exported(exporter, source, out)
    pass_the_gates(source, model, out)
    cases = Golden.load(out.path(source.artifacts["golden"])).cases
    assert list(cases) == ["real", "random", "pixels_1=12, pixels_2=10", "pixels_1=7"]
    assert cases["pixels_1=7"].inputs["input"].shape[1:] == ((7, 8, 3) if layout == "NHWC" else (3, 7, 8))
    axes = [axis.dim_param or axis.dim_value for axis in proto.graph.input[0].type.tensor_type.shape.dim]
    assert axes == (["batch", "pixels_1", "pixels_2", 3] if layout == "NHWC" else ["batch", 3, "pixels_1", "pixels_2"])
    named = [sum(isinstance(axis, str) for axis in spec.shape) for spec in source.facts.signature.outputs]
    assert named == [1, 3]  # the scores have a batch, the other output a height and a width too


@pytest.mark.parametrize("path", ["from_function", "keras.Model.export"])
def test_structural_gate_stops_leaked_constants_and_lets_the_mended_model_pass(
    bring: Bring, keep_model: Callable[..., tuple[Workspace, Artifact]], model_file: Path, tmp_path: Path, path: str
) -> None:
    source, out = bring(KerasModel(model=model_file), {"pixels": PICTURES})
    leaky = tmp_path / "leaky.onnx"
    proto = leaky_export(model_file, leaky, path)
    proto.graph.output[0].name = proto.graph.node[-1].output[0] = "scores"
    source.facts.signature.write(proto)
    onnx.save(proto, leaky)
    kept_out, kept = keep_model(proto, out.store)
    failures = {check.name: check for check in structure(StructureConfig(), kept_out, model=kept).failures}
    assert set(failures) == {"structure.undeclared_inputs"}
    stopped = failures["structure.undeclared_inputs"]
    assert stopped.value == 2
    assert "normalization" in stopped.detail
    assert "gauntlet diagnose --fix" in stopped.remedy

    needed = next(value.name for value in proto.graph.input if "Sub/y" in value.name)
    mean = np.array([0.1, 0.2, 0.3], np.float32)
    np.savez(tmp_path / "constants.npz", **{needed: mean.reshape(1, 1, 1, 3)})
    evidence = CallerHints(constants=tmp_path / "constants.npz")
    mending = fix(leaky, tmp_path / "mended.onnx", evidence, diagnose(leaky, evidence))
    assert mending.output is not None
    mended_out, mended = keep_model(onnx.load(tmp_path / "mended.onnx"), out.store)
    pass_the_gates(source, mended, mended_out)


def leaky_export(model_file: Path, target: Path, path: str) -> onnx.ModelProto:
    """Export on one of the two ways that leave constants behind as required inputs."""
    model = start_tensorflow().saving.load_model(model_file)
    if path == "keras.Model.export":
        model(PICTURES[:1])
        model.export(target, format="onnx", verbose=False)
        return onnx.load(target)
    import tensorflow as tf
    import tf2onnx

    spec = [tf.TensorSpec((None, 8, 8, 3), tf.float32, name="pixels")]
    function = tf.function(lambda pixels: model(pixels, training=False), input_signature=spec)
    return tf2onnx.convert.from_function(function, input_signature=spec, opset=18)[0]


def test_texts_are_looked_up_in_the_graph(workspace: Callable[..., Workspace], tmp_path: Path) -> None:
    keras = start_tensorflow()
    layers = keras.layers
    word = keras.Input((1,), dtype="string", name="word")
    numbers = layers.StringLookup(vocabulary=["a", "b"])(word)
    keras.Model(word, layers.Flatten()(layers.Embedding(4, 3)(numbers))).save(tmp_path / "words.keras")
    words = np.array([["a"], ["b"], ["c"]] * 6)
    spec, out = TensorSpec(name="word", dtype="str", shape=("batch", 1)), workspace()
    signature = Signature(inputs=(spec,), outputs=(), layout="none")
    source = KerasModel(model=tmp_path / "words.keras").fit({"test": ArraySplit({"word": words})}, signature, out)
    model, _ = exported(Tf2Onnx(), source, out)
    pass_the_gates(source, model, out)


def test_model_of_bfloat16_is_refused_by_the_name_of_its_layer(bring: Bring, tmp_path: Path) -> None:
    keras = start_tensorflow()
    dense = keras.layers.Dense(3, dtype="mixed_bfloat16", name="scores")
    keras.Sequential([keras.Input((4,)), dense]).save(tmp_path / "half.keras")
    with pytest.raises(StageError, match=r"the layer scores computes in bfloat16.*Fix: .*set_dtype_policy"):
        bring(KerasModel(model=tmp_path / "half.keras"), {"row": PICTURES[:, 0, 0]}, "none")


def test_export_is_refused_by_the_operator_that_onnx_does_not_have(bring: Bring, tmp_path: Path) -> None:
    start_tensorflow()
    import tensorflow as tf

    class Module(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 3), tf.float32, name="row")])
        def call(self, row: Any) -> Any:
            return {"out": tf.math.lgamma(tf.abs(row) + 1.0)}

    module = Module()
    tf.saved_model.save(module, str(tmp_path / "gamma"), signatures={"serving_default": module.call})
    rows = np.random.default_rng(3).standard_normal((12, 3)).astype(np.float32)
    source, out = bring(SavedModelFolder(trust=True, model=tmp_path / "gamma"), {"row": rows}, "none")
    with pytest.raises(StageError, match=r"tf2onnx .* cannot convert Lgamma\. Fix: use layers without it, or"):
        exported(SavedModel(), source, out)
