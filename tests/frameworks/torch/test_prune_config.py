"""What a configuration may say of pruning, and the candidates that it makes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from configs.loader import load
from configs.schema import PipelineConfig
from frameworks.torch.pruning import Structured, Unstructured
from gauntlet.core.errors import ConfigError

QUANTIZE = [{"kind": "static"}, {"kind": "dynamic"}]
BROUGHT = {"kind": "torch-model", "factory": "nets:make", "weights": "weights.pt"}


@pytest.mark.parametrize("train", [{"kind": "torch"}, BROUGHT], ids=lambda t: t["kind"])
def test_each_pruned_network_is_a_candidate_and_again_with_every_static_recipe(train: dict[str, Any]) -> None:
    prune = [{"kind": "structured", "macs_fraction": 0.25}, {"kind": "unstructured"}]
    config = PipelineConfig.model_validate({"train": train, "optimize": [], "quantize": QUANTIZE, "prune": prune})
    assert config.candidates == (
        *("fp32", "static-u8s8", "dynamic-u8"),
        *("pruned-25", "pruned-25-static-u8s8", "sparse-80", "sparse-80-static-u8s8"),
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"train": {"kind": "sklearn"}, "prune": [{"kind": "structured"}]},
            "prune supports networks of train.kind torch or torch-model, not 'sklearn'; remove it",
        ),
        (
            {"prune": [{"kind": "structured", "macs_fraction": 0.125}]},
            "prune.0.macs_fraction: 0.125: write a whole percent",
        ),
        (
            {"prune": [{"kind": "structured", "macs_fraction": 1.5}]},
            "prune.0.macs_fraction: 1.5: input should be less than or equal to",
        ),
        ({"prune": [{"kind": "structured", "round_to": 0}]}, "prune.0.round_to: 0: input should be greater than"),
        ({"prune": [{"kind": "channels"}]}, "prune.0.kind: channels (allowed: 'structured', 'unstructured')"),
        (
            {"prune": [{"kind": "structured"}, {"kind": "structured", "epochs": 9}]},
            "two candidates named 'pruned-50'; remove one of them",
        ),
    ],
)
def test_prune_is_refused_in_one_line_when_it_cannot_work(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(yaml.safe_dump(values))
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    (line,) = str(caught.value).splitlines()
    assert message in line


@given(st.integers(1, 99))
def test_names_tell_whole_percents_apart(percent: int) -> None:
    assert Structured(macs_fraction=percent / 100).name == f"pruned-{percent}"
    assert Unstructured(sparsity=percent / 100).name == f"sparse-{percent}"
