"""A configuration inferred from a model file and its data, and one clear error where that is not possible."""

from importlib.metadata import EntryPoint
from pathlib import Path

import exported_models
import numpy as np
import onnx
import onnx_text
import pretrained_models
import pytest
import transformer_models
from inferred_configs import classifier, inferred, saved
from onnxruntime.quantization import QuantType, quantize_dynamic
from PIL import Image
from streaming_models import leaky_sum

from configs.brought_model import infer_config, is_model, kind_of
from configs.frameworks import suffixes
from configs.loader import validated
from gauntlet.core.errors import ConfigError
from gauntlet.core.kinds import GROUP
from gauntlet.core.signature import signature_from_graph


def test_model_alone_gets_random_samples_and_recommended_recipes(tmp_path: Path) -> None:
    model = saved(tmp_path / "My Model_v2.onnx", exported_models.convolutions())
    found, config = inferred(model)
    assert config.name == "my-model-v2"
    assert (config.train.kind, config.train.model) == ("onnx", model)
    assert (config.data.kind, config.data.model) == ("synthetic", model)
    assert found.values["quantize"] == "auto"
    assert any(recipe.name.startswith("static-u8s8") for recipe in config.quantize)
    assert "random" in found.notes["samples"]
    assert found.notes["input image"] == "float32 [n, 3, 32, 32]"


def test_long_name_of_a_file_makes_a_name_that_folders_can_have(tmp_path: Path) -> None:
    _, config = inferred(saved(tmp_path / f"{'x' * 240}.onnx", exported_models.convolutions()))
    assert config.name == "x" * 100


def test_model_with_attention_gets_recipes_for_products(tmp_path: Path) -> None:
    _, config = inferred(saved(tmp_path / "encoder.onnx", transformer_models.encoder()))
    assert "dynamic-s8-matmul" in {recipe.name for recipe in config.quantize}
    _, other = inferred(saved(tmp_path / "conv.onnx", exported_models.convolutions()))
    assert "dynamic-s8-matmul" not in {recipe.name for recipe in other.quantize}


def test_model_with_attention_gets_no_fusions_where_none_are_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved(tmp_path / "encoder.onnx", transformer_models.encoder())
    monkeypatch.setattr("configs.brought_model.kinds", lambda part: {})
    assert [one["kind"] for one in infer_config(model, None, None, {}).values["optimize"]] == ["chain", "ort"]


@pytest.mark.slow
def test_open_shape_needs_an_argument_and_is_taken_from_it(tmp_path: Path) -> None:
    model = classifier(tmp_path / "m.onnx", "n,3,height,width")
    with pytest.raises(ConfigError, match=r"\[n, 3, height, width\].* Fix: .*--shape image=3x224x224, or .*--data"):
        infer_config(model, None, None, {})
    _, config = inferred(model, image=(3, 20, 24))
    assert config.data.dynamic_axes == {"height": 20, "width": 24}
    np.savez(tmp_path / "samples.npz", image=np.zeros((20, 3, 20, 24), np.float32))
    assert inferred(model, tmp_path / "samples.npz")[1].data.kind == "arrays"
    (folder := tmp_path / "own").mkdir()
    for split in ("calibration", "test"):
        np.savez(folder / f"{split}.npz", image=np.zeros((4, 3, 20, 24), np.float32))
    assert inferred(model, folder)[0].notes["samples"] == f"{folder} (its own splits), with no labels"


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        ({"other": (3, 8, 8)}, "--shape other: unknown input; available: image"),
        ({"image": (8, 8)}, "give every shape, or array, without the batch axis, or every one with all axes"),
        ({"image": (1, 8, 8)}, "axis 0 is 1; the model fixes it to 3"),
    ],
)
def test_shape_is_refused_when_it_does_not_fit(
    tmp_path: Path, shapes: dict[str, tuple[int, ...]], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        infer_config(classifier(tmp_path / "m.onnx", "n,3,height,width"), None, None, shapes)


def test_axes_named_with_a_question_mark_have_lengths_of_their_own(tmp_path: Path) -> None:
    proto = onnx_text.model("net (float[n,3,h,w] x) => (float[n,3,1,1] y) { y = GlobalAveragePool(x) }")
    for value in (*proto.graph.input, *proto.graph.output):
        for axis in value.type.tensor_type.shape.dim:
            if axis.dim_param:
                axis.dim_param = "?"
    found, config = inferred(saved(tmp_path / "m.onnx", proto), x=(3, 48, 192))
    assert config.data.dynamic_axes == {"x_2": 48, "x_3": 192}
    assert "batch" not in found.notes  # the batch is one axis of all inputs and outputs


def test_batch_that_is_the_second_axis_is_no_batch(tmp_path: Path) -> None:
    text = """
        recurrent (float[6,n,20] x) => (float[n,16] y) <float[1,48,20] w, float[1,48,16] r, int64[1] axis = {0}>
        { _, last = GRU<hidden_size = 16>(x, w, r) y = Squeeze(last, axis) }
    """
    found, config = inferred(saved(tmp_path / "m.onnx", onnx_text.model(text)), x=(6, 1, 20))
    assert config.data.no_batch_axis
    assert "one sample a call" in found.notes["batch"]


def test_model_whose_outputs_depend_on_the_batch_takes_one_sample_a_call(tmp_path: Path) -> None:
    float_model = saved(tmp_path / "float.onnx", exported_models.products())
    quantize_dynamic(float_model, tmp_path / "m.onnx", weight_type=QuantType.QUInt8)
    found, config = inferred(tmp_path / "m.onnx")
    assert config.data.no_batch_axis
    assert config.data.dynamic_axes == {"n": 1}
    assert "depends on the other samples of its batch" in found.notes["batch"]


def test_arrays_without_an_axis_for_the_call_are_said_to_run_in_batches(tmp_path: Path) -> None:
    text = "m (float[n,4] x) => (float[n,4] y) { s = ReduceSum<keepdims = 0>(x) y = Mul(x, s) }"
    model, samples = saved(tmp_path / "m.onnx", onnx_text.model(text)), tmp_path / "samples.npz"
    values = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)
    np.savez(samples, x=values)
    note = inferred(model, samples)[0].notes["batch"]
    assert note.startswith("samples run in batches, although")
    assert "give every array a second axis of length 1" in note
    np.savez(samples, x=values[:, None])
    assert inferred(model, samples)[0].notes["batch"].startswith("one sample a call")


@pytest.mark.parametrize("noise", ["RandomNormalLike(x)", "Multinomial<sample_size = 64>(x)"])
def test_model_that_draws_random_numbers_is_refused_by_name(tmp_path: Path, noise: str) -> None:
    kind = "float[n,4]" if "Normal" in noise else "int32[n,64]"
    text = f"m (float[n,4] x) => (float[n,4] y, {kind} z) {{ y = Neg(x) z = {noise} }}"
    with pytest.raises(ConfigError, match=r"'z' differs from call to call, as the model draws random numbers\. Fix"):
        inferred(saved(tmp_path / "m.onnx", onnx_text.model(text)))


def test_request_replaces_what_would_be_inferred(tmp_path: Path) -> None:
    model, samples = classifier(tmp_path / "m.onnx"), tmp_path / "samples.npz"
    np.savez(samples, image=np.random.default_rng(0).normal(size=(20, 3, 32, 32)).astype(np.float32))
    found, config = inferred(model, samples)
    assert (config.data.task, config.train.primary_output) == (None, None)
    assert "name it with --task" in found.notes["problem"]
    requested = infer_config(model, samples, None, {}, task="classification")
    assert (requested.values["data"]["task"], requested.values["train"]["primary_output"]) == (
        "classification",
        "scores",
    )
    with pytest.raises(ConfigError, match="--task text: no"):  # or nothing, where that wing was removed
        infer_config(model, samples, None, {}, task="text")


def test_own_signature_decides_and_contradicts_a_request(tmp_path: Path) -> None:
    proto = onnx.load(classifier(tmp_path / "m.onnx"))
    signature_from_graph(proto).replace(task="embedding", primary_output="scores").write(proto)
    model = saved(tmp_path / "m.onnx", proto)
    found, config = inferred(model)
    assert (config.data.task, config.train.primary_output) == ("embedding", "scores")
    assert "the signature in the model says so" in found.notes["problem"]
    with pytest.raises(ConfigError, match="--task text: the signature in the model says embedding"):
        infer_config(model, None, None, {}, task="text")


def test_states_are_said_and_written_where_they_can_be_cleared(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", leaky_sum())
    found, config = inferred(model)
    assert found.notes["states"].startswith("h -> h_out, judged over sequences in which each model feeds itself")
    assert config.train.states == (("h", "h_out"),)
    assert validated(model, found.values, ("train.states=[]",)).train.states == ()
    assert "states" not in inferred(saved(tmp_path / "n.onnx", exported_models.convolutions()))[0].notes


def test_arrays_are_taken_by_name_and_their_labels_named(tmp_path: Path) -> None:
    model = saved(tmp_path / "m.onnx", exported_models.convolutions())
    samples, labels = tmp_path / "samples.npz", tmp_path / "labels.txt"
    np.savez(samples, image=np.zeros((20, 3, 32, 32), np.float32), labels=np.arange(20) % 10)
    labels.write_text("\n".join(f"class {number}" for number in range(10)))
    found, config = inferred(model, samples, labels)
    assert (config.data.kind, config.data.layout, config.data.labels[3]) == ("arrays", "NCHW", "class 3")
    assert found.notes["problem"] == "classification, 10 classes"
    assert found.notes["samples"].startswith("20 in ")


@pytest.mark.parametrize(("highest", "told"), [(255, True), (1, False)])
def test_levels_of_eight_bits_are_said_to_be_taken_as_they_are(tmp_path: Path, highest: int, told: bool) -> None:
    np.savez(tmp_path / "s.npz", image=np.full((20, 3, 32, 32), highest, np.uint8))
    found, _ = inferred(saved(tmp_path / "m.onnx", exported_models.convolutions()), tmp_path / "s.npz")
    assert ("image are taken as they are, from 0 to 255" in found.notes.get("scale", "")) == told


def test_texts_are_classes_where_the_file_names_them(tmp_path: Path) -> None:
    model, samples = pretrained_models.text_labels(tmp_path)
    names = np.array(["owl", "cat"])[np.arange(60) % 2]
    np.savez(tmp_path / "s.npz", x=samples["x"][np.arange(60) % len(samples["x"])], labels=names)
    found, config = inferred(model, tmp_path / "s.npz")
    assert found.notes["problem"] == "classification, as the labels are"
    assert config.data.load().signature.labels == ("cat", "dog", "owl")


def spoilt(tmp_path: Path) -> Path:
    (tmp_path / "bad.onnx").write_bytes(b"not a model")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bad.npz").write_bytes(b"PK")
    (tmp_path / "one.txt").write_text("cat\n")
    (tmp_path / "latin.txt").write_bytes(b"\xe9t\xe9\n")
    np.savez(tmp_path / "other.npz", picture=np.zeros((20, 3, 32, 32), np.float32))
    Image.new("RGB", (8, 8)).save(tmp_path / "image.png")
    classifier(tmp_path / "m.onnx")
    proto = onnx_text.model("m (float[n,4] x) => (float[n,4] y) { y = MatMul(x, w) }")
    for name, data in (("short", "w.data"), ("alone", "gone.data")):
        proto.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
        onnx.save(proto, tmp_path / f"{name}.onnx", save_as_external_data=True, location=data, size_threshold=0)
        del proto.graph.initializer[:]
    (tmp_path / "gone.data").unlink()
    onnx_text.save(tmp_path / "constant.onnx", "m () => (float[1] y) <float[1] w> { y = Relu(w) }")
    onnx_text.save(tmp_path / "open.onnx", "m (float[] x) => (float[n,4] y) <float[4,4] w> { y = MatMul(x, w) }")
    (tmp_path / "w.data").write_bytes(b"1234")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("missing.onnx",), "missing.onnx: no such file"),
        (("bad.onnx",), "bad.onnx: not a readable ONNX model"),
        (
            ("short.onnx",),
            r"short.onnx: its external data 'w.data' has 4 bytes, and 'w' ends at 64. Fix: copy the whole",
        ),
        (
            ("constant.onnx",),
            "constant.onnx: it has no inputs, so that it returns the same whatever comes. Fix: export",
        ),
        (("open.onnx",), "open.onnx: the input 'x' declares no shape, not even its number of axes. Fix: export"),
        (("alone.onnx",), r"alone.onnx: its external data 'gone.data' is missing, .* Fix: put the data into"),
        (("folder",), "a folder of no known kind"),
        (("image.png",), "a file of no known kind; expected one that ends in .onnx"),
        (("m.onnx", "missing"), "--data .*missing: no such file or folder"),
        (("m.onnx", "bad.npz"), "--data .*bad.npz: not an .npz file of plain arrays"),
        (("m.onnx", "image.png"), "--data .*image.png: expected an .npz file of inputs by name, or a folder of images"),
        (("m.onnx", "other.npz"), r"no array 'image', found: picture. Fix: name the arrays as the inputs: \['image'\]"),
        (("m.onnx", None, "missing.txt"), "--labels .*missing.txt: not a readable text file"),
        (("m.onnx", None, "latin.txt"), "--labels .*latin.txt: not a readable text file"),
        (("m.onnx", None, "one.txt"), "--labels .*one.txt: fewer than two labels; expected one label a line"),
    ],
)
def test_wrong_file_is_refused_in_one_line(tmp_path: Path, arguments: tuple[str | None, ...], message: str) -> None:
    folder = spoilt(tmp_path)
    paths = [folder / name if name else None for name in (*arguments, None, None)]
    with pytest.raises(ConfigError, match=message) as error:
        infer_config(paths[0], paths[1], paths[2], {})  # type: ignore[arg-type]
    assert "\n" not in str(error.value)


def test_what_is_a_model_is_told_from_a_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(map(is_model, ("M.ONNX", *(f"m{suffix}" for suffix in suffixes()), str(tmp_path))))
    (tmp_path / "digits-resnet18").mkdir()
    monkeypatch.chdir(tmp_path)
    assert [is_model(name) for name in ("digits-resnet18", "my.yaml")] == [False, False]


def test_table_that_a_removed_wing_reads_names_the_wing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = EntryPoint("samples.other_files", "wings.nowhere.objects:samples_file", GROUP)
    monkeypatch.setattr("gauntlet.core.kinds.points", lambda: (gone,))
    (tmp_path / "x.csv").write_text("a,b\n1,2\n")
    with pytest.raises(ConfigError, match=r"x\.csv: expected an \.npz .*\. samples\.other_files is in wings\.nowhere"):
        infer_config(classifier(tmp_path / "m.onnx"), tmp_path / "x.csv", None, {})


def test_file_of_tensorflow_lite_is_refused_with_what_converts_it() -> None:
    pytest.importorskip("frameworks.keras")
    with pytest.raises(ConfigError, match=r"m\.tflite: a file of TensorFlow Lite\. Fix: .*--tflite m\.tflite --output"):
        kind_of(Path("m.tflite"))


@pytest.mark.parametrize("name", ["labels", "labels_y"])
def test_input_that_has_the_name_of_the_truth_is_no_truth(tmp_path: Path, name: str) -> None:
    graph = f"(string[n, 4] {name}) => (string[n, 4] y) {{ y = Identity({name}) }}"
    onnx.save(onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 17]> g {graph}'), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", **{f"input:{name}": np.full((8, 4), "a")})  # texts cannot be drawn at random
    notes = infer_config(tmp_path / "m.onnx", tmp_path / "x.npz", None, {}).notes
    assert notes[f"input {name}"] == "str [n, 4]"
    assert "8 in" in notes["samples"] and "with no labels" in notes["samples"]


def test_arrays_of_unlike_lengths_are_left_to_the_stage_that_names_them(tmp_path: Path) -> None:
    text = "m (float[n,4] a, float[n,3] b) => (float[n,7] y) { y = Concat<axis = 1>(a, b) }"
    model = saved(tmp_path / "m.onnx", onnx_text.model(text))
    np.savez(tmp_path / "x.npz", a=np.zeros((80, 4), np.float32), b=np.zeros((70, 3), np.float32))
    assert inferred(model, tmp_path / "x.npz")[0].values["data"]["kind"] == "arrays"
