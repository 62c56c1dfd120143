"""`gauntlet diagnose` and `inspect` as a person meets them, and figures that agree with the source framework."""

import json
from pathlib import Path

import faulty_models
import numpy as np
import onnx
import onnx_text
import pytest
from harness import called

from flows.cli.main import main
from gauntlet.runtime.integer_share import measure_integer_share
from wings.inspection.library.diagnosis.findings import TITLES, Diagnosis, FixResult
from wings.inspection.library.summary import Inspection, inspect

pytestmark = pytest.mark.slow


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.onnx"
    onnx.save(faulty_models.cnn(), path)
    return path


def test_sound_model_ends_with_exit_code_0_and_lists_what_was_looked_for(tmp_path: Path, model: Path) -> None:
    done = called(tmp_path, "diagnose", "model.onnx")
    assert done.returncode == 0, done.stderr
    assert "No fault found" in done.stdout
    for fault in list(TITLES)[:8]:
        assert TITLES[fault] in done.stdout


def test_fault_ends_with_exit_code_1_and_its_fix_is_a_command_that_works(tmp_path: Path, model: Path) -> None:
    mean = np.full((1, 3, 1, 1), 0.25, np.float32)
    onnx.save(faulty_models.leaked_constants(), model)
    np.savez(tmp_path / "constants.npz", **{"model/norm/mean": mean})
    done = called(tmp_path, "diagnose", "model.onnx", "--constants", "constants.npz")
    assert done.returncode == 1
    assert "constant leaked as an input" in done.stdout
    offered = next(line for line in done.stdout.splitlines() if "gauntlet diagnose" in line)
    words = offered.partition("gauntlet ")[2].split()
    assert words == ["diagnose", "model.onnx", "--fix", "model.fixed.onnx", "--constants", "constants.npz"]
    before = model.read_bytes()
    mended = called(tmp_path, *words)
    assert mended.returncode == 0, mended.stdout + mended.stderr
    assert "Written: model.fixed.onnx" in mended.stdout
    assert "bound 1 as initializers" in mended.stdout
    assert model.read_bytes() == before


def test_warning_alone_ends_with_exit_code_0(tmp_path: Path, model: Path) -> None:
    onnx.save(faulty_models.missing_shapes(), model)
    done = called(tmp_path, "diagnose", "model.onnx")
    assert done.returncode == 0
    assert "1 warning" in done.stdout


def test_json_holds_the_diagnosis_the_fixes_and_the_diagnosis_after(tmp_path: Path, model: Path) -> None:
    onnx.save(faulty_models.frozen_batch(), model)
    done = called(tmp_path, "diagnose", "model.onnx", "--json", "--fix", "fixed.onnx", "--layout", "NHWC")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = Diagnosis.model_validate(answer["diagnosis"])
    assert {finding.fault for finding in found.findings} == {"frozen_batch", "wrong_layout"}
    assert FixResult.model_validate(answer["fix"]).output == "fixed.onnx"
    assert Diagnosis.model_validate(answer["after"]).findings == ()


def test_fix_that_is_refused_writes_nothing_and_says_so(tmp_path: Path, model: Path) -> None:
    onnx.save(faulty_models.dropout_that_drops(), model)
    np.savez(tmp_path / "data.npz", x=np.zeros((4, 3, 16, 16), np.float32), y=np.full((4, 10), 7, np.float32))
    done = called(tmp_path, "diagnose", "model.onnx", "--data", "data.npz", "--fix", "fixed.onnx")
    assert done.returncode == 1
    assert "undone: the outputs change by" in done.stdout
    assert "no file is written" in done.stdout
    assert not (tmp_path / "fixed.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["diagnose", "nothing.onnx"], ["nothing.onnx: no such file"]),
        (["diagnose", "notes.txt"], ["notes.txt", "*.onnx"]),
        (["diagnose", "model.onnx", "--data", "nothing.npz"], ["nothing.npz: no such file"]),
        (["diagnose", "model.onnx", "--fix", "out.txt"], ["out.txt", ".onnx"]),
        (["diagnose", "model.onnx", "--fix", "model.onnx"], ["model.onnx: this is the model itself"]),
        (["diagnose", "model.onnx", "--layout", "HWC"], ["invalid choice"]),
        (["inspect", "nothing.onnx"], ["nothing.onnx: no such file"]),
        (["inspect", "model.onnx", "--json", "--graph"], ["not allowed"]),
    ],
)
def test_wrong_question_ends_with_exit_code_2(
    tmp_path: Path, model: Path, arguments: list[str], words: list[str]
) -> None:
    (tmp_path / "notes.txt").write_text("no model")
    done = called(tmp_path, *arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in done.stderr


def test_damaged_file_ends_with_exit_code_3_and_one_line(tmp_path: Path, model: Path) -> None:
    model.write_bytes(model.read_bytes()[:700])
    for verb in ("diagnose", "inspect"):
        done = called(tmp_path, verb, "model.onnx")
        assert done.returncode == 3
        assert done.stdout == ""
        assert len(done.stderr.splitlines()) == 1
        assert done.stderr.startswith("gauntlet: model.onnx: not a readable ONNX model")


def test_names_of_a_hostile_model_cannot_steer_the_terminal(tmp_path: Path, model: Path) -> None:
    proto = faulty_models.frozen_batch()
    proto.graph.node[0].name = "\x1b[2J[bold red]conv[/]"
    proto.producer_name = "\x1b]0;title\x07"
    onnx.save(proto, model)
    for words in (["diagnose", "model.onnx", "--layout", "NHWC"], ["inspect", "model.onnx"]):
        done = called(tmp_path, *words)
        assert "\x1b" not in done.stdout
        assert "[bold red]conv" in done.stdout  # shown as it is, not obeyed
        assert "Traceback" not in done.stderr


def test_inspect_shows_the_model_and_its_json(tmp_path: Path, model: Path) -> None:
    done = called(tmp_path, "inspect", "model.onnx")
    assert done.returncode == 0, done.stderr
    for word in (
        "x  float[batch, 3, 16, 16]",
        "opset ai.onnx 18",
        "By operator",
        "By layer",
        "conv2",
        "76 524",
        "parameters",
    ):
        assert word in done.stdout.replace("\u202f", " "), word
    assert Inspection.model_validate_json(called(tmp_path, "inspect", "model.onnx", "--json").stdout).macs == 76_524
    lines = called(tmp_path, "inspect", "model.onnx", "--graph").stdout.splitlines()
    assert lines[-1] == "y [batch, 10] = Gemm(f, w3, b3)"


def test_targets_show_what_each_takes_within_80_columns(tmp_path: Path) -> None:
    onnx.save(onnx_text.model("m (float[n,4] x) => (float[n,4] y) { s = Sin(x) y = Relu(s) }"), tmp_path / "m.onnx")
    done = called(tmp_path, "diagnose", "m.onnx", "--timeout=60", "--targets", "ort-cpu,ort-coreml", COLUMNS="80")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(len(line) <= 80 for line in done.stdout.splitlines())
    rows = {line.split()[0]: line for line in done.stdout.splitlines() if "ort-" in line}
    assert "2/2" in rows["ort-cpu"]
    assert "1/2" in rows["ort-coreml"]
    assert "1 node on CPUExecutionProvider: Sin" in done.stdout


def test_targets_are_in_the_json_and_an_unknown_one_is_an_error(tmp_path: Path, model: Path) -> None:
    done = called(tmp_path, "diagnose", "model.onnx", "--json", "--targets", "ort-cpu")
    [row] = json.loads(done.stdout)["targets"]
    assert (row["target"], row["elsewhere"], row["refused"]) == ("ort-cpu", {}, None)
    done = called(tmp_path, "diagnose", "model.onnx", "--targets", "ort-gpu")
    assert done.returncode == 2
    assert done.stderr.startswith("gauntlet: unknown target 'ort-gpu'; available: ort-cpu, ")


def of(proto: onnx.ModelProto, folder: Path) -> Inspection:
    onnx.save(proto, folder / "model.onnx")
    return inspect(folder / "model.onnx")


def test_real_model_has_the_sources_parameters_and_the_profilers_macs(trained) -> None:
    found = inspect(trained.path)
    sample = {"input": np.zeros((1, 3, 32, 32), np.float32)}
    assert found.macs == measure_integer_share(trained.path, sample).macs
    assert found.nodes_of_unknown_macs == 0
    # The exporter folds batch normalization into the convolutions, so parameters are counted in the file.
    stored = trained.proto().graph.initializer
    assert found.parameters == sum(int(np.prod(t.dims)) for t in stored if t.data_type == onnx.TensorProto.FLOAT)
    assert found.weights_bytes >= 4 * found.parameters
    assert found.inputs == {"input": "float[batch, 3, 32, 32]"}
    assert found.outputs == {"logits": "float[batch, 10]"}
    assert found.opsets == {"ai.onnx": 18}
    assert found.signature.layout == "NCHW"
    assert "gauntlet.signature" not in found.metadata


def test_macs_and_bytes_of_a_small_model_are_those_on_paper(tmp_path: Path) -> None:
    found = of(faulty_models.cnn(), tmp_path)
    layers = {layer.name: layer for layer in found.layers}
    assert list(layers) == ["conv1", "conv2", "head"]
    assert layers["conv1"].macs == 16 * 16 * 8 * 3 * 3 * 3
    assert layers["conv2"].macs == 7 * 7 * 6 * 8 * 3 * 3
    assert layers["head"].macs == 6 * 10
    assert (layers["conv1"].parameters, layers["conv1"].weights_bytes) == (8 * 27 + 8, 4 * (8 * 27 + 8))
    assert layers["conv2"].output == "[1, 6, 7, 7]"
    assert found.macs == sum(layer.macs or 0 for layer in found.layers)
    rows = {row.operator: row for row in found.operators}
    assert (rows["Conv"].count, rows["Conv"].macs) == (2, found.macs - 60)
    assert rows["Relu"].weights_bytes == 0
    assert [row.weights_bytes for row in found.operators] == sorted(
        (r.weights_bytes for r in found.operators), reverse=True
    )


def test_graph_is_a_line_a_node_with_shapes_and_branches_indented(tmp_path: Path) -> None:
    lines = of(faulty_models.branches(), tmp_path).graph
    assert lines[0] == "a [batch, 8, 16, 16] = Conv(x, w1, b1) {pads=[1,1,1,1]}"
    assert "  then_branch:" in lines
    assert "    t [batch, 10] = Relu(y)" in lines
    assert lines[lines.index("  body:") + 1].startswith("    next")


def test_macs_are_unknown_when_shapes_are(tmp_path: Path) -> None:
    found = of(faulty_models.missing_shapes(), tmp_path)
    macs = {layer.name: layer.macs for layer in found.layers}
    assert macs["conv1"] == 16 * 16 * 8 * 3 * 3 * 3
    assert macs["conv2"] is None
    assert found.nodes_of_unknown_macs == 2
    assert next(row for row in found.operators if row.operator == "Conv").macs is None
    assert next(row for row in found.operators if row.operator == "com.microsoft::QuickGelu").count == 1


def test_transposed_and_grouped_convolutions_are_counted(tmp_path: Path) -> None:
    proto = onnx_text.model("""
        convolutions (float[?,3,8,8] x) => (float[?,4,14,14] y)
        <float[3,4,2,2] w, float[4,1,3,3] d>
        {
            [up] a = ConvTranspose<strides = [2, 2]>(x, w)
            [depthwise] y = Conv<group = 4>(a, d)
        }
    """)
    found = of(proto, tmp_path)
    assert {layer.name: layer.macs for layer in found.layers} == {
        "up": 3 * 8 * 8 * 4 * 2 * 2,
        "depthwise": 4 * 14 * 14 * 9,
    }
    sample = {"x": np.zeros((1, 3, 8, 8), np.float32)}
    assert found.macs == measure_integer_share(tmp_path / "model.onnx", sample).macs


def test_quantized_weights_count_for_the_node_that_computes_with_them(tmp_path: Path) -> None:
    proto = faulty_models.cnn()
    proto.graph.initializer.remove(next(t for t in proto.graph.initializer if t.name == "w2"))
    text = "<int8[6,8,3,3] w2_q, float scale = {0.1}> { [dq] w2 = DequantizeLinear(w2_q, scale) }"
    onnx_text.extend(proto, text, 0, {"w2_q": np.ones((6, 8, 3, 3))})
    layer = next(layer for layer in of(proto, tmp_path).layers if layer.name == "conv2")
    assert layer.weights_bytes == 6 * 8 * 9 + 4
    assert layer.macs == 7 * 7 * 6 * 8 * 9


def test_weights_are_described_and_the_graph_named(tmp_path: Path) -> None:
    text = "two_products (float[n,2] x) => (float[n,2] y) <float[2,2] w, float[2,2] v> "
    text += "{ [first] h = MatMul(x, w) [second] y = MatMul(h, v) }"
    found = of(onnx_text.model(text, {"w": [-1, 0, 0, 3], "v": [1, 1, np.nan, 1]}), tmp_path)
    assert found.graph_name == "two_products"
    first, second = (layer.weights for layer in found.layers)
    assert (first.minimum, first.maximum, first.mean, first.zeros, first.non_finite) == (-1, 3, 0.5, 0.5, 0)
    assert first.std == pytest.approx(1.5)
    assert (second.minimum, second.std, second.non_finite) == (1, 0, 1)


def test_external_data_is_never_read(tmp_path: Path) -> None:
    proto = faulty_models.cnn()
    onnx.save(proto, tmp_path / "model.onnx", save_as_external_data=True, location="w.bin", size_threshold=0)
    (tmp_path / "w.bin").unlink()
    found = inspect(tmp_path / "model.onnx")
    assert found.parameters == sum(int(np.prod(t.dims)) for t in faulty_models.cnn().graph.initializer)
    assert found.weights_bytes == 4 * found.parameters
    assert not any(layer.weights for layer in found.layers)


def test_real_names_have_room_at_80_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    proto = onnx_text.model(
        "m (float[n,3,224,224] x) => (float[n,64,224,224] y) <float[64,3,3,3] w>{ y = Conv<pads=[1,1,1,1]>(x, w) }"
    )
    proto.graph.node[0].name = "/features/features.0/block/block.1/conv/Conv"
    onnx.save(proto, tmp_path / "m.onnx")
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["inspect", str(tmp_path / "m.onnx")]) == 0
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 80
    assert "/features/features.0/block/block.1/" in out
    assert "Conv [1, 64, 224, 224]" in out
