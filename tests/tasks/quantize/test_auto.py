"""`quantize: auto`: what suits the processor, and nothing that is known to be slower there."""

from typing import get_args

import pytest
from pydantic import ValidationError

from configs.loader import load
from configs.schema import PipelineConfig
from gauntlet.runtime.processor import Processor
from gauntlet.targets import by_name
from tasks.quantize.auto import Operators, recommended_recipes
from tasks.quantize.static import StaticInt8

VNNI = Processor("x86_64", frozenset({"avx2", "avx512f", "avx512_vnni"}))
AVX2 = Processor("x86_64", frozenset({"avx2"}))
ARM = Processor("aarch64", frozenset())
OPERATORS: tuple[Operators, ...] = get_args(Operators)


@pytest.mark.parametrize("processor", [VNNI, AVX2, ARM])
@pytest.mark.parametrize("operators", OPERATORS)
@pytest.mark.parametrize("without_vnni", [False, True])
def test_auto_offers_few_recipes_with_names_of_their_own(
    processor: Processor, operators: Operators, without_vnni: bool
) -> None:
    recipes = recommended_recipes(processor, operators, without_vnni=without_vnni)
    assert 2 <= len({r.name for r in recipes}) == len(recipes) <= 8
    static = [r for r in recipes if isinstance(r, StaticInt8)]
    assert all(type(r).model_validate(r.model_dump()) == r for r in recipes)
    assert not any(r.format == "qoperator" or r.activations == "u16" for r in static)


def test_auto_offers_unsigned_activations_on_x86_and_signed_ones_on_arm() -> None:
    def activations(processor: Processor) -> set[str]:
        return {r.activations for r in recommended_recipes(processor, "convolutions") if isinstance(r, StaticInt8)}

    assert (activations(VNNI), activations(AVX2), activations(ARM)) == ({"u8"}, {"u8"}, {"s8"})


@pytest.mark.parametrize("operators", OPERATORS)
def test_auto_offers_signed_weights_in_reduced_ranges_alone_where_sums_saturate(operators: Operators) -> None:
    def reduced(processor: Processor) -> set[bool]:
        recipes = recommended_recipes(processor, operators)
        return {r.reduce_range for r in recipes if isinstance(r, StaticInt8) and r.weights == "s8"}

    assert (reduced(VNNI), reduced(AVX2), reduced(ARM)) == ({False}, {True}, {False})


def test_auto_offers_what_a_further_runtime_wants_when_the_winner_may_be_shipped_there() -> None:
    usual = set(recommended_recipes(VNNI, "convolutions"))

    def more(*kinds: str) -> list[str]:
        deployed = [by_name(kind) for kind in kinds]
        return [r.name for r in recommended_recipes(VNNI, "convolutions", deployed=deployed) if r not in usual]

    assert more() == more("ort-cpu", "ort-cuda") == []
    usually = ["static-u8s8-float-head-inputs", "static-u8s8-inputs"]
    assert more("openvino", "ort-openvino") == usually
    assert more("ort-tensorrt") == ["static-s8s8-symmetric-float-head-inputs", "static-s8s8-symmetric-inputs"]
    safe = [f"static-u8s8-no-overflow{rest}" for rest in ("-float-head-inputs", "-inputs")]
    for operators in OPERATORS:  # the more exact one before the time is up, and none saturates
        names = [r.name for r in recommended_recipes(AVX2, operators, deployed=[by_name("openvino")])]
        assert [names[1], names[-1]] == safe
    shipped = ("benchmark.targets=[ort-cpu, ort-openvino-f32, openvino-int8]", "quantize=auto")
    told = load("digits-resnet18", (*shipped, "benchmark.deploy_targets=[ort-openvino-f32]"))
    assert [r.name for r in told.quantize if r.name.endswith("-inputs")] in (usually, safe)
    assert not any(r.name.endswith("-inputs") for r in load("digits-resnet18", shipped).quantize)


def test_auto_quantizes_no_convolution_at_each_call() -> None:
    kinds = {o: [r.name for r in recommended_recipes(VNNI, o) if r.kind == "dynamic"] for o in OPERATORS}
    assert kinds["convolutions"] == []
    assert kinds["unknown"] == ["dynamic-u8-matmul"]
    names = [recipe.name for recipe in recommended_recipes(VNNI, "unknown", deployed=[by_name("openvino")])]
    assert names.index("dynamic-u8-matmul") == 3  # time may be limited, and most models have convolutions
    assert kinds["matrices"] == kinds["attention"] == ["dynamic-u8-matmul", "dynamic-s8-matmul"]


def test_auto_has_recipes_of_products_where_nothing_else_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.quantize.auto.kinds", lambda part: {})
    assert {r.kind for r in recommended_recipes(VNNI, "attention")} == {"static", "dynamic"}


def test_auto_becomes_a_list_of_recipes_when_a_configuration_is_read() -> None:
    config = load("digits-resnet18", ("quantize=auto",))
    names = [recipe.name for recipe in config.quantize]
    assert names[0].startswith(("static-u8s8", "static-s8s8"))
    assert set(names) < set(config.candidates)
    assert len(config.candidates) <= 13  # the reference, six graph passes, and the recipes
    assert PipelineConfig.model_validate(config.model_dump(mode="json")) == config
    attention = load("digits-resnet18", ("quantize=auto", "train.architecture=torchvision/vit_b_16"))
    assert {"static", "dynamic"} <= {r.kind for r in attention.quantize}
    assert {r.kind for r in config.quantize} == {"static"}


def test_auto_is_in_the_schema_that_forms_are_drawn_from() -> None:
    schema = PipelineConfig.model_json_schema()["properties"]["quantize"]
    assert {"const": "auto", "type": "string"} in schema["anyOf"]


def test_auto_offers_one_recipe_that_leaves_the_head_in_float() -> None:
    for processor in (VNNI, AVX2, ARM):
        heads = [r for r in recommended_recipes(processor, "convolutions") if getattr(r, "float_head", False)]
        assert len(heads) == 1


@pytest.mark.parametrize("processor", [VNNI, AVX2, ARM])
@pytest.mark.parametrize("candidate", ["static-u8s8", "static-u8s8-no-overflow-repaired", "static-s8s8-float-stem"])
def test_override_may_name_what_auto_makes_on_another_processor(
    processor: Processor, candidate: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("wings.repair")
    monkeypatch.setattr(Processor, "current", lambda: processor)
    overrides = [{"check": "a.b", "reason": "known and accepted", "candidate": candidate}]
    assert PipelineConfig.model_validate({"overrides": overrides}).overrides[0].candidate == candidate
    with pytest.raises(ValidationError, match=f"unknown candidate '{candidate}'; available: "):
        PipelineConfig.model_validate({"quantize": [{"kind": "dynamic"}], "overrides": overrides})
