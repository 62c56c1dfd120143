"""What a configuration must not say: each refusal names the file, the key, the value and what is allowed."""

import inspect
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import yaml
from pydantic import BaseModel, TypeAdapter

from configs.loader import load
from configs.runner import LocalRunner, RunnerConfig
from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError
from gauntlet.core.unions import OneOf, models_of

Path_ = tuple[str | int, ...]


Owners = tuple[type[BaseModel] | None, ...]


def parts(
    model: type[BaseModel], path: Path_ = (), owners: Owners = ()
) -> Iterator[tuple[Path_, Owners, type[BaseModel]]]:
    """Yield every mapping that a configuration can hold: where it is written, whose keys those are, and its model."""
    yield path, owners, model
    for name, field in model.model_fields.items():
        choices = [field.annotation, *typing.get_args(field.annotation)]  # a list, or a list or None
        kind = typing.get_origin(choices[choices[-1] is types.NoneType])
        below = {tuple: (0,), dict: ("any",)}.get(kind, ())
        for inner in models_of(field):
            yield from parts(inner, (*path, name, *below), (*owners, model, *(None for _ in below)))


PARTS = list(parts(PipelineConfig))


def leaves(model: type[BaseModel]) -> list[str]:
    """Return the keys of a mapping that hold a plain value."""
    return [
        name
        for name, field in model.model_fields.items()
        if not models_of(field) and name != "kind" and typing.get_origin(field.annotation) is not dict
    ]


FILLERS: dict[str, Any] = {
    "scenario": "Offline",
    "factory": "models:build",
    "function": "passes:fuse",
    "shape": [1],
    "check": "evaluate.min_recall",
    "reason": "long enough to pass",
    "p99_ms": 50,
    "rate": 20,
    **{key: [1] for key in ("min", "opt", "max")},
}


def needed(model: type[BaseModel]) -> dict[str, Any]:
    """Return what a mapping must say at the least."""
    said: dict[str, Any] = {"kind": model.model_fields["kind"].default} if "kind" in model.model_fields else {}
    return said | {n: FILLERS.get(n, filler(f.annotation)) for n, f in model.model_fields.items() if f.is_required()}


def filler(annotation: Any) -> str:
    """Return the first choice where there are some, else any text."""
    return str(typing.get_args(annotation)[0]) if typing.get_origin(annotation) is typing.Literal else "nowhere"


def document(path: Path_, owners: Owners, model: type[BaseModel], values: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration that says `values` in that part, and what the parts around it need besides."""
    inner: Any = needed(model) | values
    for step, owner in reversed(list(zip(path, owners, strict=True))):
        inner = ([inner] if step == 0 else {step: inner}) if owner is None else needed(owner) | {step: inner}
    return inner


def refusal(folder: Path, values: Any, *settings: str) -> str:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(values), encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        load(str(file), settings)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{file}: ") for line in lines)
    return "\n".join(line.removeprefix(f"{file}: ") for line in lines)


def key_of(path: Path_, name: str) -> str:
    return ".".join(map(str, (*path, name)))


each_part = pytest.mark.parametrize(
    ("path", "owners", "model"), PARTS, ids=lambda v: v.__name__ if inspect.isclass(v) else None
)


@each_part
def test_key_is_refused_and_named_when_it_is_unknown_in_a_part(
    tmp_path: Path, path: Path_, owners: Owners, model: type[BaseModel]
) -> None:
    message = refusal(tmp_path, document(path, owners, model, {"zzz": 1}))
    assert message.startswith(f"{key_of(path, 'zzz')}: unknown key (allowed: {', '.join(model.model_fields)})")


@each_part
def test_misspelt_key_is_refused_with_the_right_one_when_a_letter_is_doubled(
    tmp_path: Path, path: Path_, owners: Owners, model: type[BaseModel]
) -> None:
    for name in leaves(model):
        message = refusal(tmp_path, document(path, owners, model, {name + name[-1]: 1}))
        assert message.startswith(f"{key_of(path, name + name[-1])}: unknown key; did you mean '{name}'?")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"train": {"epochs": 0}}, "train.epochs: 0: input should be greater than or equal to 1"),
        ({"train": {"architecture": "vgg"}}, "architecture: 'vgg': unknown architecture; did you mean vgg19"),
        ({"operator_libraries": "ops.so"}, "operator_libraries: 'ops.so': input should be a list, such as [a, b]"),
        ({"numerics": {"batch_sizes": [1, 0]}}, "numerics.batch_sizes.1: 0: input should be greater than 0"),
        ({"optimize": [{"kind": "ort", "level": "max"}]}, "optimize.0.level: 'max': input should be 'basic', "),
        ({"optimize": [{"kind": "magic"}]}, "optimize.0.kind: magic (allowed: 'ort', 'python', 'chain'"),
        ({"quantize": [{"weights": "s8"}]}, "quantize.0.kind: missing; a kind is required"),
        ({"quantize": "automatic"}, "quantize: 'automatic': write auto, or a list of recipes"),
        ({"quantize": [{"kind": "static", "activations": "s8", "weights": "u8"}]}, "no kernels for activations s8"),
        ({"quantize": [{"kind": "static", "activations": "u16", "format": "qoperator"}]}, "use format qdq"),
        (
            {"quantize": [{"kind": "static", "calibration_method": {"kind": "percentile", "percentile": 100}}]},
            "quantize.0.calibration_method.percentile: 100: input should be less than 100",
        ),
        ({"data": {"kind": "arrays"}}, "data.path: field required"),
        ({"runner": {"kind": "cluster"}}, "runner.kind: cluster (allowed: 'threads', 'processes'"),
        ({"runner": {"workers": 0}}, "runner.workers: 0: input should be greater than or equal to 1"),
        ({"runner": {"kind": "processes", "workers": 0}}, "runner.workers: 0: input should be greater than or"),
        ({"train": 5}, "train: 5: input should be"),
        ({"benchmark": {"deploy_targets": "x"}}, "benchmark.deploy_targets: 'x': write auto, or a list of names"),
        ({"benchmark": {"deploy_targets": ["auto"]}}, "deploy_targets: unknown target 'auto'"),
        ({"select": {"objective": "energy"}}, "select.objective: 'energy': input should be 'latency', 'throughput'"),
        ({"select": {"batch": 4}}, "select.batch is 4, which is not measured; benchmark.batch_sizes has [1, 8]"),
        ({"benchmark": {"batch_sizes": [2, 8]}}, "select.batch is 1, which is not measured"),
        ({"optimize": [{"kind": "ort"}, {"kind": "ort"}]}, "two candidates named 'ort-extended'; remove one of them"),
        ({"quantize": [{"kind": "static"}, {"kind": "static", "weights": "s8"}]}, "two candidates named 'static-u8s8'"),
        (
            {"overrides": [{"check": "a.b", "reason": "known and accepted", "candidate": "int4"}]},
            "overrides: unknown candidate 'int4'; available: ['fp32', 'passes', 'ort-basic'",
        ),
        ({"benchmark": {"batch_sizes": [1, 1]}}, "benchmark.batch_sizes"),
        ({"data": {"kind": "digits", "test_images": 600, "validation_images": 600, "calibration_images": 600}}, "1797"),
        ({"overrides": [{"check": "a.b", "reason": "no"}]}, "overrides.0.reason: 'no': string should have at least 10"),
    ],
)
def test_wrong_value_is_refused_with_key_value_and_what_is_allowed(
    tmp_path: Path, values: dict[str, Any], message: str
) -> None:
    assert message in refusal(tmp_path, values)


def test_every_fault_is_reported_when_there_are_several(tmp_path: Path) -> None:
    lines = refusal(tmp_path, {"train": {"epochs": 0, "speed": 1}, "color": "red"}).splitlines()
    assert [line.split(":")[0] for line in lines] == ["train.epochs", "train.speed", "color"]


def test_default_is_one_after_the_other() -> None:
    assert load("digits-small-cnn").runner.is_serial
    assert not load("digits-small-cnn", ("runner.workers=2",)).runner.is_serial
    assert not load("digits-small-cnn", ("runner={kind: processes, workers: 1}",)).runner.is_serial


@pytest.mark.parametrize("kind", ["threads", "processes"])
def test_runner_of_this_machine_has_both_kinds_when_no_package_brings_another(kind: str) -> None:
    alone: TypeAdapter[RunnerConfig] = TypeAdapter(Annotated[RunnerConfig, OneOf("of no package", (LocalRunner,))])
    assert alone.validate_python({"kind": kind}).kind == kind
