"""The keys `serve` and `loadgen` of a configuration, and what the command needs."""

import subprocess
import sys
from pathlib import Path

import pytest

from configs.loader import load
from configs.required_packages import needed_packages
from gauntlet.core.errors import ConfigError
from gauntlet.targets import environments
from gauntlet.targets.environments import NOTE

LOADGEN = "loadgen=[{scenario: Offline}]"
OBJECTIVE = "serve.objective={p99_ms: 50, rate: 20}"


def test_stage_needs_its_packages_when_it_is_configured() -> None:
    needed = needed_packages(load("bring-your-own-onnx", (LOADGEN, OBJECTIVE)))
    assert needed == {"mlperf_loadgen": ("serve", "loadgen"), "uvicorn": ("serve", "serving")}
    assert not needed_packages(load("bring-your-own-onnx"))


def test_loadgen_is_refused_for_a_runtime_of_another_environment() -> None:
    shipped = ("benchmark.targets=[ort-cpu, openvino-f32]", "benchmark.deploy_targets=[openvino-f32]")
    load("digits-small-cnn", shipped)
    with pytest.raises(ConfigError, match=r"loadgen measures .* names 'openvino-f32', which runs in another"):
        load("digits-small-cnn", (*shipped, LOADGEN))


def test_runtime_of_another_environment_takes_no_part_where_loadgen_measures_the_winner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GAUNTLET_HOME", str(tmp_path))
    place = environments.folder("openvino")
    place.mkdir(parents=True)
    (place / NOTE).write_text(environments.known()["openvino"].note)
    auto = "benchmark.deploy_targets=auto"
    assert load("digits-small-cnn", (auto,)).benchmark.deploy_targets[0] == "openvino-f32"
    assert not load("digits-small-cnn", (auto, LOADGEN)).benchmark.deploy_targets


def test_command_without_its_extra_is_refused_in_one_line_with_the_command_that_installs_it() -> None:
    code = "import sys; sys.modules['uvicorn'] = None; import flows.cli.main as cli; sys.exit(cli.main(['serve', 'b']))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    [line] = done.stderr.splitlines()
    assert done.returncode == 2
    assert line == "gauntlet: this needs uvicorn, which is not installed; install it with: make serving"
