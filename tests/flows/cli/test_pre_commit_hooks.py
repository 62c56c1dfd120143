"""The hooks for other repositories, run by pre-commit itself."""

import os
import subprocess
from pathlib import Path

import onnx_text
import pytest
import yaml
from harness import GAUNTLET

HOOKS = Path(__file__).parents[3] / ".pre-commit-hooks.yaml"


def checked(folder: Path) -> tuple[int, str]:
    """Run the hooks on all files of a repository; pre-commit installs nothing, for the command is there."""
    hooks = [hook | {"language": "system"} for hook in yaml.safe_load(HOOKS.read_text())]
    (folder / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": [{"repo": "local", "hooks": hooks}]}))
    for words in (["init", "-q"], ["add", "."]):
        subprocess.run(["git", *words], cwd=folder, check=True)
    own = {"PATH": f"{GAUNTLET.parent}{os.pathsep}{os.environ['PATH']}", "PRE_COMMIT_HOME": str(folder / "cache")}
    command = [GAUNTLET.with_name("pre-commit"), "run", "--all-files"]
    done = subprocess.run(command, cwd=folder, env=os.environ | own, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def test_manifest_is_valid() -> None:
    subprocess.run([GAUNTLET.with_name("pre-commit"), "validate-manifest", HOOKS], check=True)


@pytest.mark.slow
def test_hooks_pass_good_files_and_name_each_bad_one(tmp_path: Path) -> None:
    text = "m (float[n,3,8,8] x) => (float[n,3] y) { g = GlobalAveragePool(x) y = Flatten(g) }"
    onnx_text.save(tmp_path / "good.onnx", text)
    (tmp_path / "gauntlet.yaml").write_text("name: good\n")
    (tmp_path / "other.yaml").write_text("name: [no configuration\n")
    code, text = checked(tmp_path)
    assert code == 0, text
    assert text.count("Passed") == 2
    (tmp_path / "bad.onnx").write_bytes(b"nonsense")
    (tmp_path / "worse.onnx").write_bytes(b"nonsense, too")
    (tmp_path / "gauntlet-small.yaml").write_text("name: Big\n")
    code, text = checked(tmp_path)
    assert code == 1
    for name in (
        "bad.onnx: not a readable ONNX model",
        "worse.onnx: not a readable",
        "gauntlet-small.yaml: name: 'Big'",
    ):
        assert name in text
