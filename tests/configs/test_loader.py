"""Configurations are loaded from files and --set, their lists become candidates, and wrong ones are refused."""

from itertools import pairwise, product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.core.errors import ConfigError
from tasks.quantize.auto import AUTO_BUDGET_S

CHOICES: dict[str, st.SearchStrategy[Any]] = {
    "name": st.from_regex(r"[a-z][a-z0-9-]{0,10}", fullmatch=True).filter(lambda s: isinstance(yaml.safe_load(s), str)),
    "data.seed": st.integers(0, 1000),
    "data.image_size": st.integers(8, 224),
    "train.epochs": st.integers(1, 1000),
    "train.learning_rate": st.floats(1e-9, 1.0),
    "train.architecture": st.sampled_from(["resnet18", "small-cnn"]),
    "evaluate.min_accuracy": st.floats(0, 1),
    "export.opset": st.integers(13, 20),
    "numerics.max_rel_error": st.floats(0, 1e3),
    "numerics.batch_sizes": st.lists(st.integers(1, 9), min_size=1, max_size=3),
    "benchmark.threads": st.none() | st.integers(1, 8),
    "select.require_speedup": st.booleans(),
    "tracking.uri": st.none() | st.sampled_from(["http://host:5000", "sqlite:///a.db"]),
}
SETTINGS = st.lists(st.sampled_from(sorted(CHOICES)), unique=True, max_size=5).flatmap(
    lambda keys: st.fixed_dictionaries({key: CHOICES[key] for key in keys})
)


def nested(settings: dict[str, Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for key, value in settings.items():
        *parents, last = key.split(".")
        place = values
        for name in parents:
            place = place.setdefault(name, {})
        place[last] = value
    return values


def written(folder: Path, values: Any) -> str:
    path = folder / "config.yaml"
    path.write_text(values if isinstance(values, str) else yaml.safe_dump(values), encoding="utf-8")
    return str(path)


@given(settings=SETTINGS)
def test_load_is_the_same_when_a_value_is_set_instead_of_written(tmp_path: Path, settings: dict[str, Any]) -> None:
    base = {"name": "base", "data.kind": "digits"}
    edited = load(written(tmp_path, nested(base | settings)))
    flow = {key: yaml.safe_dump(value, default_flow_style=True, width=10_000) for key, value in settings.items()}
    words = tuple(key + "=" + text.removesuffix("...\n").strip() for key, text in flow.items())
    assert load(written(tmp_path, nested(base)), words) == edited
    assert PipelineConfig.model_validate_json(edited.model_dump_json()) == edited
    for key, value in settings.items():
        found: Any = edited
        for name in key.split("."):
            found = getattr(found, name)
        assert found == (tuple(value) if isinstance(value, list) else value)


def test_set_changes_one_element_when_a_list_is_indexed(tmp_path: Path) -> None:
    path = written(tmp_path, {"optimize": [{"kind": "ort", "level": "basic"}, {"kind": "onnxslim"}], "quantize": []})
    assert load(path, ("optimize.0.level=all",)).candidates == ("fp32", "ort-all", "onnxslim")
    assert load(path, ("optimize.1={kind: onnxsim}",)).candidates == ("fp32", "ort-basic", "onnxsim")
    assert load(path, ("optimize=[]",)).candidates == ("fp32",)


@pytest.mark.parametrize("text", ["1e-12", "1.0e-12", "0.000000000001"])
def test_set_reads_a_number_when_it_is_written_as_people_do(tmp_path: Path, text: str) -> None:
    assert load(written(tmp_path, {}), (f"numerics.max_rel_error={text}",)).numerics.max_rel_error == 1e-12


@pytest.mark.parametrize(("text", "name"), [("'2024'", "2024"), ('"1e3"', "1e3"), ("2024-01-31", "2024-01-31")])
def test_set_leaves_text_when_it_is_quoted_or_a_date(tmp_path: Path, text: str, name: str) -> None:
    assert load(written(tmp_path, {}), (f"name={text}",)).name == name


def test_set_makes_the_part_when_the_file_leaves_it_empty(tmp_path: Path) -> None:
    assert load(written(tmp_path, "train:\n"), ("train.epochs=7",)).train.epochs == 7


def test_name_too_long_for_the_folder_of_a_run_is_refused(tmp_path: Path) -> None:
    assert load(written(tmp_path, {"name": "a" * 200})).name == "a" * 200
    with pytest.raises(ConfigError, match=r"name.* 200 characters"):
        load(written(tmp_path, {"name": "a" * 201}))


def test_later_set_wins_when_two_name_the_same_key(tmp_path: Path) -> None:
    assert load(written(tmp_path, {}), ("train.epochs=7", "train.epochs=8")).train.epochs == 8


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("train.epochs", "write key.path=value"),
        ("=5", "write key.path=value"),
        ("train.epochs=[1", "the value is not YAML"),
        ("train.epochs=!!int x", "the value is not YAML"),
        ("train.epochs=" + "1" * 5000, "the value is not YAML"),
        ("train.epochs=" + "[" * 3000, "the value is not YAML"),
        ("name.first=5", "has no keys"),
        ("name.first.second=5", "is below the value 'base'"),
        ("optimize.7.kind=ort", "'7': index out of range (0 to 0)"),
        ("optimize.first.kind=ort", "'first': index out of range (0 to 0)"),
        ("optimize.-1=ort", "'-1': index out of range"),
    ],
)
def test_set_is_refused_and_repeated_when_it_leads_nowhere(tmp_path: Path, setting: str, message: str) -> None:
    path = written(tmp_path, {"name": "base", "optimize": [{"kind": "onnxslim"}]})
    with pytest.raises(ConfigError) as caught:
        load(path, (setting,))
    assert str(caught.value).startswith(f"--set {setting}: ")
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "name: x\nmodel: [unclosed",
            "YAML: line 2, column 17: expected ',' or ']', but got '<stream end>'. Fix: ",
        ),
        ("name: x\nname: y\n", "not readable as YAML: line 2, column 1: name is there twice"),
        ("- a\n- b\n", "expected a mapping of keys to values, got list"),
        ("", "got NoneType"),
        ("just words", "got str"),
        ("name: " + "[" * 3000, "not readable as YAML"),
        ("name: " + "1" * 5000, "not readable as YAML"),
        ("!!python/object/apply:os.system ['true']", "not readable as YAML"),
    ],
)
def test_load_refuses_naming_the_file_when_it_is_no_mapping(tmp_path: Path, text: str, message: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert message in str(caught.value)


def test_load_refuses_naming_the_file_when_it_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(ConfigError, match=r"config\.yaml: not readable as YAML"):
        load(str(tmp_path / "config.yaml"))


def test_value_in_the_place_of_a_section_is_refused_with_the_section_s_keys(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"select: \[\]: expected a section with keys \(allowed: objective, batch, "):
        load(written(tmp_path, "name: x\nselect: []\n"))


def test_message_is_short_when_aliases_make_a_huge_value(tmp_path: Path) -> None:
    lists = "".join(f"{name}: &{name} [{', '.join([f'*{below}'] * 10)}]\n" for below, name in pairwise("abcdefgh"))
    with pytest.raises(ConfigError, match=r"name: \[\[\[.*\.\.\.") as caught:
        load(written(tmp_path, f"a: &a [x]\n{lists}name: *h\n"))
    assert len(str(caught.value)) < 1 << 20


def test_load_suggests_the_nearest_preset_when_there_is_no_such_file() -> None:
    with pytest.raises(ConfigError, match=r"digits-resnet81: no such file or preset; did you mean 'digits-resnet18'\?"):
        load("digits-resnet81")
    with pytest.raises(ConfigError, match=r"no such file or preset \(presets: .*digits-small-cnn"):
        load("zzz.yaml")


KINDS: dict[str, tuple[Any, ...]] = {
    "weights": ("u8", "s8"),
    "per_channel": (True, False),
    "reduce_range": (True, False),
    "symmetric": (True, False),
}
SPACES = st.fixed_dictionaries(
    {}, optional={key: st.lists(st.sampled_from(values), min_size=1, unique=True) for key, values in KINDS.items()}
)


def recipes(folder: Path, *written: dict[str, Any], settings: tuple[str, ...] = ()) -> list[str]:
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump({"quantize": list(written)}), encoding="utf-8")
    return [recipe.name for recipe in load(str(file), settings).quantize]


@given(space=SPACES)
def test_recipe_becomes_the_product_of_its_lists(space: dict[str, list[Any]]) -> None:
    config = PipelineConfig.model_validate({"quantize": [{"kind": "static", **space}]})
    written = [tuple(getattr(recipe, key) for key in space) for recipe in config.quantize]
    assert written == list(product(*space.values()))
    assert PipelineConfig.model_validate_json(config.model_dump_json()) == config


def test_lists_are_of_one_recipe_and_may_hold_lists(tmp_path: Path) -> None:
    methods = [{"kind": "minmax"}, {"kind": "percentile", "percentile": [99.9, 99.99]}]
    assert recipes(
        tmp_path, {"kind": "static", "calibration_method": methods}, {"kind": "dynamic", "weights": ["u8", "s8"]}
    ) == [*("static-u8s8", "static-u8s8-percentile99.9", "static-u8s8-percentile99.99"), *("dynamic-u8", "dynamic-s8")]


@pytest.mark.parametrize(
    ("recipe", "message"),
    [
        ({"per_channel": [True, True]}, "two candidates named 'static-u8s8'; remove one of them"),
        ({"per_channel": []}, r"quantize.0.per_channel: \[\]: input should be a valid boolean"),
        ({"weights": ["u8", "s9"]}, "quantize.1.weights: 's9': input should be 'u8' or 's8'"),
        ({"activations": ["u8", "s8"], "weights": ["u8", "s8"]}, "no kernels for activations s8 with weights u8"),
        ({"wieghts": ["u8", "s8"]}, "quantize.0.wieghts: unknown key; did you mean 'weights'"),
    ],
)
def test_list_is_refused_when_a_choice_is_wrong_or_there_twice(
    tmp_path: Path, recipe: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        recipes(tmp_path, {"kind": "static", **recipe})


AUTO = ("benchmark.deploy_targets=auto",)


@pytest.fixture(autouse=True)
def nothing_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))


def test_nothing_is_added_where_no_other_runtime_is_installed() -> None:
    race = load("digits-small-cnn", AUTO).benchmark
    assert ([target.name for target in race.targets], race.deploy_targets) == (["ort-cpu"], ())


def test_target_that_is_not_valid_is_refused_as_without_auto() -> None:
    for wrong in ("[ort-cpu, {kind: nothing}]", "[ort-cpu, {kind: ort-cpu, level: f8}]", "ort-cpu"):
        with pytest.raises(ConfigError, match=r"benchmark\.targets"):
            load("digits-small-cnn", (*AUTO, f"benchmark.targets={wrong}"))


def test_time_for_recipes_is_limited_with_auto_and_only_then() -> None:
    assert load("digits-small-cnn", ("quantize=auto",)).quantize_budget_s == AUTO_BUDGET_S
    assert load("digits-small-cnn", ("quantize=auto", "quantize_budget_s=7")).quantize_budget_s == 7
    assert load("digits-small-cnn", ("quantize=[{kind: static}]",)).quantize_budget_s is None


def test_race_is_planned_for_the_objective() -> None:
    by_latency = load("digits-small-cnn", ("select.batch=8",)).race
    assert (by_latency.batch_sizes, by_latency.early_stopping) == ((8, 1), True)
    for objective in ("throughput", "size", "memory"):
        race = load("digits-small-cnn", (f"select.objective={objective}",)).race
        assert (race.batch_sizes, race.early_stopping) == ((1, 8), False)
    assert not load("digits-small-cnn", ("select.tie_tolerance=0.05",)).race.early_stopping
    assert not load("digits-small-cnn", ("benchmark.early_stopping=false",)).race.early_stopping
