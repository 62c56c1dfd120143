"""A bundle's model predicts as it did in the run, from images as people have them."""

import asyncio
from collections.abc import Callable
from itertools import product
from pathlib import Path

import numpy as np
import onnx_text
import pandas as pd
import PIL.Image
import pytest
import torch
from bundles import confirmation, keep, keep_golden, pack, png, run_report, samples
from sklearn.datasets import load_digits

import gauntlet
from gauntlet.bundle.bundle import Bundle
from gauntlet.bundle.contract import BatchLatency
from gauntlet.bundle.predictor import Predictor
from gauntlet.core.errors import ConfigError, StageError
from gauntlet.core.workspace import Workspace
from gauntlet.images.decoding import decode_image
from gauntlet.runtime.session import open_session
from gauntlet.targets.ort import OrtCpu


@pytest.fixture(scope="module")
def predictor(packed: Path) -> Predictor:
    return gauntlet.load(packed)


@pytest.fixture
def array_bundle(workspace: Callable[..., Workspace]) -> Path:
    """The bundle of a model of two named arrays."""
    space = workspace()
    proto = onnx_text.model("sums (float[n,3] a, float[n,3] b) => (float[n,3] y) { y = Add(a, b) }")
    model = keep(proto, space.store, space.folder)
    golden = keep_golden(space.path(model), {"a": samples(9, 3), "b": samples(9, 3)}, space.store, space.folder)
    return space.path(pack(space, model, golden).artifacts["bundle"])


def test_image_files_are_predicted_as_what_they_show(predictor: Predictor, tmp_path: Path) -> None:
    truth = load_digits().target
    found = predictor.predict([png(number) for number in range(60)])
    assert np.mean([int(one.top[0].label) == truth[i] for i, one in enumerate(found)]) >= 0.95
    (tmp_path / "a.png").write_bytes(png(7))
    assert predictor(tmp_path / "a.png") == predictor(str(tmp_path / "a.png")) == predictor(png(7))
    assert found[0].text().startswith("0: 9")


def test_number_of_threads_below_one_is_refused(packed: Path) -> None:
    with pytest.raises(ConfigError, match="threads: -1: at least 1"):
        gauntlet.load(packed, threads=-1)


def test_table_has_the_inputs_of_a_model_by_name(workspace: Callable[..., Workspace]) -> None:
    space = workspace()
    proto = onnx_text.model("sums (float[n] a, float[n] b) => (float[n] y) { y = Sub(a, b) }")
    model = keep(proto, space.store, space.folder)
    golden = keep_golden(space.path(model), {"a": samples(9), "b": samples(9)}, space.store, space.folder)
    predictor = gauntlet.load(space.path(pack(space, model, golden).artifacts["bundle"]))
    table = pd.DataFrame({"b": [1.0, 2], "other": ["x", "y"], "a": [10.0, 20]})
    assert predictor.run(table)["y"].tolist() == [9, 18]
    with pytest.raises(StageError, match="takes a, b"):
        predictor.run(table[["b", "other"]])
    with pytest.raises(StageError, match="there are no samples: a, b has none"):
        predictor.run(table[:0])


def test_pixels_on_the_scale_of_the_training_data_are_no_image_file(predictor: Predictor) -> None:
    raw, file = predictor(load_digits().images[3][:, :, None]), predictor(png(3))
    assert raw.top[0].label == file.top[0].label == "3"
    assert raw.top[0].confidence == pytest.approx(file.top[0].confidence, abs=0.02)


def test_golden_inputs_give_the_golden_outputs(predictor: Predictor) -> None:
    golden = predictor.bundle.golden()
    outputs = predictor.run(golden.inputs)
    assert outputs.keys() == golden.outputs.keys()
    for name, expected in golden.outputs.items():
        np.testing.assert_allclose(outputs[name], expected, atol=1e-5)


def test_stream_keeps_order_and_reports_what_it_cannot_read(predictor: Predictor, tmp_path: Path) -> None:
    images = [png(1), b"no image", png(2), tmp_path / "missing.png", *(png(i) for i in range(20))]
    found = list(predictor.stream(images))
    assert [image for image, _ in found] == images
    broken = [index for index, (_, one) in enumerate(found) if isinstance(one, StageError)]
    assert broken == [1, 3]
    assert "missing.png: No such file" in str(found[3][1])


def test_stream_reads_no_further_than_one_batch(predictor: Predictor) -> None:
    taken = []

    def endless() -> object:
        while True:
            taken.append(1)
            yield png(0)

    stream = predictor.stream(endless(), batch=4)  # type: ignore[type-var]
    for _ in range(6):
        next(stream)
    assert len(taken) == 8


def test_event_loop_goes_on_while_a_prediction_is_made(predictor: Predictor) -> None:
    async def both() -> tuple[list[object], int]:
        ticks = 0
        work = asyncio.ensure_future(predictor.apredict([png(i % 10) for i in range(100)]))
        while not work.done():
            await asyncio.sleep(0.001)
            ticks += 1
        return list(await work), ticks

    found, ticks = asyncio.run(both())
    assert found == predictor.predict([png(i % 10) for i in range(100)])
    assert ticks > 2


def test_batch_with_the_most_samples_a_second_is_chosen(predictor: Predictor) -> None:
    assert predictor.contract.best_batch == 8  # 4 samples/ms; 2 at batch 1 and 32
    fast = BatchLatency(batch=3, median_ms=0.1)
    assert predictor.contract.replace(latencies=(fast,)).best_batch == 3
    assert predictor.contract.replace(latencies=()).best_batch == 8


def test_session_of_the_winner_is_opened(packed: Path) -> None:
    bundle = Bundle.open(packed)
    session = {"graph_optimization_level": "ORT_ENABLE_BASIC", "enable_cpu_mem_arena": False, "intra_op_num_threads": 1}
    session["session.intra_op.allow_spinning"] = "0"
    chosen = Bundle(bundle.folder, bundle.contract.replace(session=session), bundle.manifest)
    options = Predictor(chosen).session.get_session_options()
    assert options.graph_optimization_level.name == "ORT_ENABLE_BASIC"
    assert (options.enable_cpu_mem_arena, options.intra_op_num_threads) == (False, 1)
    assert options.get_session_config_entry("session.intra_op.allow_spinning") == "0"
    assert Predictor(chosen, threads=2).session.get_session_options().intra_op_num_threads == 2
    many = Bundle(bundle.folder, bundle.contract.replace(session={"intra_op_num_threads": 4096}), bundle.manifest)
    assert Predictor(many).session.get_session_options().intra_op_num_threads < 4096


def test_every_session_that_can_win_can_be_opened_from_a_contract(predictor: Predictor) -> None:
    for level, spinning, arena, branches in product(
        ("off", "basic", "extended", "all"), *[(True, False)] * 2, (None, 2)
    ):
        target = OrtCpu(level=level, spinning=spinning, arena=arena, inter_op_threads=branches)
        open_session(predictor.bundle.model, overrides=target.session_options(2))


@pytest.mark.parametrize(
    "session",
    [
        {"optimized_model_filepath": "/tmp/written"},
        {"enable_profiling": True},
        {"session.load_model_format": "ORT"},
        {"graph_optimization_level": "FASTEST"},
        {"intra_op_num_threads": "many"},
    ],
)
def test_session_option_that_a_contract_may_not_set_is_refused(packed: Path, session: dict[str, str]) -> None:
    with pytest.raises(StageError, match=next(iter(session))):
        open_session(Bundle.open(packed).model, overrides=session)


def test_model_of_arrays_takes_arrays_and_no_images(array_bundle: Path) -> None:
    predictor = gauntlet.load(array_bundle)
    ones = np.ones((2, 3), np.float32)
    outputs = predictor.run({"a": ones, "b": ones})
    assert outputs["y"].tolist() == [[2.0] * 3] * 2
    assert predictor.decode(outputs)[0].text() == "y: 2, 2, 2"
    with pytest.raises(ConfigError, match=r"the model takes a float32.*not images. Fix: predict\(samples\)"):
        predictor(png(0))


@pytest.mark.parametrize("convert", [torch.from_numpy, np.ndarray.tolist, pd.DataFrame], ids=lambda one: one.__name__)
def test_arrays_may_be_tensors_lists_and_tables(array_bundle: Path, convert: Callable[..., object]) -> None:
    predictor = gauntlet.load(array_bundle)
    inputs = {"a": convert(samples(4, 3)), "b": convert(samples(4, 3))}
    assert predictor.run(inputs)["y"].tolist() == (2 * samples(4, 3)).tolist()
    assert len(predictor.predict(inputs)) == 4
    with pytest.raises(StageError, match=r"the model takes a, b\. Fix: give a dictionary"):
        predictor.run(convert(samples(4, 3)))
    with pytest.raises(StageError, match="a list cannot be read as an array"):
        predictor.run({"a": [[1], [1, 2]], "b": [1]})


@pytest.mark.parametrize("convert", [list, np.stack])
def test_arrays_may_be_images_with_the_channels_last(
    workspace: Callable[..., Workspace], convert: Callable[[list[PIL.Image.Image]], object]
) -> None:
    space = workspace()
    proto = onnx_text.model("means (float[n,3,4,6] x) => (float[n,3,1,1] y) { y = GlobalAveragePool(x) }")
    model = keep(proto, space.store, space.folder)
    golden = keep_golden(space.path(model), {"x": samples(9, 3, 4, 6)}, space.store, space.folder)
    predictor = gauntlet.load(space.path(pack(space, model, golden).artifacts["bundle"]))
    pixels = np.arange(3 * 72, dtype=np.uint8).reshape(3, 4, 6, 3)
    outputs = predictor.run(convert([PIL.Image.fromarray(image) for image in pixels]))
    np.testing.assert_allclose(outputs["y"].reshape(3, 3), pixels.mean((1, 2)), rtol=1e-6)


@pytest.mark.parametrize("convert", [PIL.Image.fromarray, torch.from_numpy, np.ndarray.tolist])
def test_image_may_be_pillows_a_tensor_or_a_list(predictor: Predictor, convert: Callable[..., object]) -> None:
    assert predictor(convert(decode_image(png(3), 1)[:, :, 0].copy())) == predictor(png(3))


def test_one_image_alone_is_one_and_what_is_none_is_refused(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "three.png").write_bytes(png(3))
    paths, pixels = (tmp_path / "three.png", str(tmp_path / "three.png")), decode_image(png(3), 1)
    for one in (png(3), *paths, pixels, pixels[:, :, 0], PIL.Image.fromarray(pixels[:, :, 0])):
        assert predictor.predict(one) == [predictor(png(3))]
    for none in (3, [1, 2], pixels[:, :, 0].tolist()):
        with pytest.raises(StageError, match=r"pixels of shape \(height, width, channels\); got .* Fix: run"):
            predictor.predict(none)


def test_open_file_is_an_image_and_a_file_without_pixels_is_none(predictor: Predictor, tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(png(7))
    with (tmp_path / "a.png").open("rb") as file:
        assert predictor(file) == predictor(png(7))
        file.seek(0)
        assert predictor.predict(file) == [predictor(png(7))]
    with (tmp_path / "a.png").open("rb") as file, pytest.raises(StageError, match="BufferedReader is no array"):
        predictor.run(file)
    with pytest.raises(StageError, match=r"got ndarray \(0, 8, 3\)\. Fix"):
        predictor(np.zeros((0, 8, 3), np.uint8))


def test_listed_integers_are_levels_of_8_bits(predictor: Predictor) -> None:
    with pytest.raises(StageError, match="takes uint8, 0 to 255; the samples are int64 from 0 to 300"):
        predictor([[0, 300]])


def test_images_may_be_one_array(predictor: Predictor) -> None:
    images = np.stack([decode_image(png(number), 1) for number in range(3)])
    assert predictor.predict(images) == predictor.predict([png(number) for number in range(3)])


def test_levels_of_images_are_normalized_as_those_of_files_are(predictor: Predictor) -> None:
    how = predictor.preprocessing()
    images = np.random.default_rng(0).integers(0, 256, (3, how.height, how.width, len(how.mean)), np.uint8)
    [outputs], [expected] = (predictor.run(inputs).values() for inputs in (images, predictor.inputs_of([*images])))
    np.testing.assert_array_equal(outputs, expected)


def test_image_of_pillow_with_16_bits_is_refused(predictor: Predictor) -> None:
    with pytest.raises(StageError, match="pixel mode I;16; expected at most 8 bits"):
        predictor(PIL.Image.new("I;16", (8, 8)))


def test_damaged_bundle_is_not_loaded(folder: Path) -> None:
    (folder / "model.onnx").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"model\.onnx: changed"):
        gauntlet.load(folder)


def test_reference_that_won_elsewhere_runs_here_in_a_default_session(workspace: Callable[..., Workspace]) -> None:
    pytest.importorskip("wings.providers")
    space = workspace()
    proto = onnx_text.model("twice (float[n,3] a) => (float[n,3] y) { y = Add(a, a) }")
    model = keep(proto, space.store, space.folder)
    golden = keep_golden(space.path(model), {"a": samples(9, 3)}, space.store, space.folder)
    final = confirmation("static-u8s8", "openvino-f32")
    report = pack(space, model, golden, report=run_report(model, "static-u8s8"), final=final)
    assert (report.facts.contract.session, report.facts.contract.target) == (None, "openvino-f32")
    report.raise_if_blocked()
