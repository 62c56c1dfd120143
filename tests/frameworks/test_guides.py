"""What the guides tell people to type is what works: each command runs on tiny data, from files to a winner."""

import re
import shlex
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import needs
import numpy as np
import pretrained_models
import pytest
import yaml
from small_images import write_cifar, write_pictures
from torch_networks import NEGPOS, SIZE, SOUND, write_network

from configs.brought_model import is_model
from configs.loader import load
from configs.schema import PipelineConfig
from flows.cli.main import main
from flows.cli.options import parser
from gauntlet.core.run_report import RunReport

GUIDES = Path(__file__).parents[2] / "docs" / "how-to"
PAGES = ("an-onnx-file", "data", "a-pytorch-model", "a-keras-model", "a-sklearn-or-jax-model")
TEXT = "\n".join((GUIDES / f"bring-{page}.md").read_text() for page in PAGES)
CLASSES = 4


def commands() -> Iterator[tuple[list[str], str]]:
    """Yield each command of the pages, and the YAML that stands above it: what they call mine.yaml."""
    written = ""
    for language, block in re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL):
        written = block if language == "yaml" else written
        for line in block.replace("\\\n", " ").splitlines():
            if language == "console" and line.startswith(".venv/bin/gauntlet "):
                words = shlex.split(line, comments=True)[1:]
                yield words, written if "mine.yaml" in words else ""


def configured(words: list[str], written: str) -> PipelineConfig:
    """Return the configuration of a `run` command; no file that it names needs to be there."""
    if written:
        return PipelineConfig.model_validate(yaml.safe_load(written))
    options = parser().parse_args(words)
    return load(options.config, tuple(options.set))


def is_configured(words: list[str]) -> bool:
    """Tell whether a command runs a configuration that is known here: no model (test_run_model.py has these)."""
    brought = is_model(words[1]) or "--data" in words  # the folder of a SavedModel is not there
    return words[0] == "run" and not brought and "RUN" not in words[1]


def way(config: PipelineConfig) -> tuple[str, ...]:
    """Return what makes a way from data to ONNX another one; the rest is options."""
    own = ("operators",) if config.operator_libraries else ()
    return (config.data.kind, config.train.kind, config.export.kind, *own)


COMMANDS = list(commands())
WAYS: dict[tuple[str, ...], tuple[list[str], str]] = {}
"""The first command of each way."""
for words, written in COMMANDS:
    if is_configured(words):
        WAYS.setdefault(way(configured(words, written)), (words, written))
RUN_ELSEWHERE = {way(load(preset)) for preset in ("digits-small-cnn", "digits-hog-svm", "digits-cnn-flax")}
RUN_ELSEWHERE |= {
    ("arrays", "exported-program", "dynamo"),
    ("arrays", "torchscript", "torchscript"),
    ("arrays", "jax-model", "jax2onnx"),
}
"""In golden_reports.py, in test_golden_reports.py, and in test_brought_frameworks.py."""


def first_of_a_kind() -> Iterator[tuple[str, ...]]:
    """Yield the ways that have a kind of data, training, export or operators that no way before them has."""
    seen = {(place, kind) for known in RUN_ELSEWHERE for place, kind in enumerate(known)}
    for known in WAYS:
        kinds = set(enumerate(known))
        if not kinds <= seen:
            yield known
        seen |= kinds


RUN_HERE = {"-".join(known): WAYS[known] for known in first_of_a_kind()}
NIGHTLY = {
    *("arrays-onnx-as-is", "cifar-torch-torchscript", "arrays-sklearn-model-skl2onnx"),
    *("image-folder-torch-torchscript", "digits-torch-both", "arrays-torch-model-torchscript", "digits-keras-tf2onnx"),
    *("digits-keras-saved-model", "arrays-saved-model-saved-model", "arrays-boosting-onnxmltools"),
}
"""The rest, one or two of each framework, every change has to pass."""


def test_every_kind_of_source_has_a_command() -> None:
    data, train, export = (set(kinds) for kinds in zip(*(known[:3] for known in WAYS), strict=True))
    assert data == {"digits", "cifar", "image-folder", "arrays"}  # `run model.onnx` alone takes random samples
    assert train == {
        *("torch", "torch-model", "exported-program", "torchscript", "keras", "keras-model", "saved-model"),
        *("sklearn", "sklearn-model", "boosting", "boosting-model", "flax", "jax-model", "onnx"),
    }
    assert export == {
        *("torchscript", "dynamo", "both", "tf2onnx", "saved-model"),
        *("skl2onnx", "onnxmltools", "jax2onnx", "as-is"),
    }


@pytest.mark.parametrize(("words", "written"), COMMANDS, ids=[" ".join(words) for words, _ in COMMANDS])
def test_command_parses_and_its_configuration_is_valid(words: list[str], written: str) -> None:
    assert parser().parse_args(words)
    if is_configured(words):
        assert configured(words, written)


@pytest.mark.parametrize("block", re.findall(r"```yaml\n(.*?)```", TEXT, re.DOTALL))
def test_configuration_is_valid(block: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(block)
    load(str(tmp_path / "mine.yaml"))


def labelled(*axes: int) -> dict[str, np.ndarray]:
    """Return random samples of a shape, each class around its own mean, and their labels."""
    labels = np.arange(60) % CLASSES
    noise = np.random.default_rng(0).standard_normal((60, *axes))
    return {"input": (noise + labels.reshape(-1, *[1] * len(axes))).astype(np.float32), "labels": labels}


def onnx_file() -> None:
    _, samples = pretrained_models.two_inputs(Path())
    Path("brought.onnx").rename("model.onnx")
    np.savez("samples.npz", **samples)


def arrays() -> None:
    script = re.search(r"python - <<'PY'\n(.*?)\nPY\n", TEXT, re.DOTALL)
    assert script
    exec(script[1], {})


def pipeline() -> None:
    import skops.io
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    samples = labelled(6)
    np.savez("samples.npz", **samples)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    skops.io.dump(model.fit(samples["input"], samples["labels"]), "pipeline.skops")


def boosted_trees() -> None:
    import lightgbm

    samples = labelled(6)
    np.savez("samples.npz", **samples)
    model = lightgbm.LGBMClassifier(n_estimators=5, verbose=-1).fit(samples["input"], samples["labels"])
    model.booster_.save_model("model.txt")


def keras_models() -> None:
    from frameworks.keras.architectures import KerasNetworkSpec

    network = KerasNetworkSpec(
        architecture="small-cnn", shape=(32, 32, 3), classes=CLASSES, batch_norm_momentum=0.9
    ).build()
    network.save("mine.keras")
    network.export("folder", verbose=False)
    np.savez("samples.npz", **labelled(32, 32, 3))


def torch_network() -> None:
    write_network(Path("my-code"), SOUND, width=64).rename("weights.pt")
    np.savez("samples.npz", **labelled(3, SIZE, SIZE))


def operators() -> None:
    import torch

    Path("nets.py").write_text(NEGPOS)
    made: dict[str, Callable[[], torch.nn.Module]] = {}
    exec(NEGPOS, made)
    torch.save(made["make"]().state_dict(), "weights.pt")
    np.savez("samples.npz", **labelled(3, SIZE, SIZE))
    shutil.copyfile(needs.operator_library(), "libmyops.so")


MADE: dict[str, Callable[[], object]] = {
    "train.model=model.onnx": onnx_file,
    "data={kind: arrays, path: samples.npz}": arrays,
    "path: features.npz": lambda: np.savez("features.npz", **labelled(6)),
    "pipeline.skops": pipeline,
    "data.path=pictures": lambda: write_pictures(Path("pictures"), "cat", "dog", count=20),
    "code_folder: my-code": torch_network,
    "operator_libraries: [libmyops.so]": operators,
    "kind: boosting": boosted_trees,
    "kind: keras-model": keras_models,
    "kind: saved-model": keras_models,
}
"""The files that a command reads, by what stands in it or in its YAML."""

QUICK = {
    "evaluate": "{min_accuracy: 0, min_recall: 0, max_generalization_gap: 1}",
    "numerics.samples": 8,
    "optimize": "[]",
    "quantize": "[]",
    "benchmark": "{rounds: 6, block_ms: 1, batch_sizes: [1], restart_processes: false}",
}
SMALL = {
    "digits": {"validation_images": 560, "calibration_images": 600, "test_images": 560},
    "cifar": {"train_images": 60, "validation_images": 20, "calibration_images": 10, "test_images": 30},
}
"""Sizes of the data, by its kind; of the digits, few are left to train on."""


def tiny(words: list[str], config: PipelineConfig) -> list[str]:
    """Return settings that make a command quick: few samples, one epoch, and no candidates beside the FP32 model.

    A preset's network becomes a small one, unless the command names the network.
    """
    changes = QUICK | {f"data.{key}": size for key, size in SMALL.get(config.data.kind, {}).items()}
    if config.data.kind == "digits" and config.train.kind == "torch":
        changes |= {"data.image_size": 8}
    if hasattr(config.train, "epochs"):
        changes |= {"train.epochs": 1}
    if hasattr(config.train, "architecture") and "architecture" not in " ".join(words):
        changes |= {"train.architecture": "small-cnn"}
    return [word for key, value in changes.items() for word in ("--set", f"{key}={value}")]


@pytest.fixture(scope="module")
def home(prefect_server: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One home for all of them: MLflow's tables are made once, and the same data is loaded once."""
    return tmp_path_factory.mktemp("sources")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "written"),
    [pytest.param(*each, id=name, marks=[pytest.mark.nightly] * (name in NIGHTLY)) for name, each in RUN_HERE.items()],
)
def test_command_ends_with_a_winner_when_its_files_are_there(
    words: list[str], written: str, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GAUNTLET_HOME", str(home))
    for part, make in MADE.items():
        if part in " ".join(words) + written:
            make()
    if "cifar" in words[1]:
        write_cifar(tmp_path / "cifar", monkeypatch)
    Path("mine.yaml").write_text(written)
    before = set((home / "runs").glob("*"))
    assert main([*words, *tiny(words, configured(words, written))]) == 0
    (folder,) = set((home / "runs").glob("*")) - before
    report = RunReport.model_validate_json((folder / "report.json").read_bytes())
    assert (report.verdict, report.winner) == ("passed", "fp32")
