"""The action on GitHub: its script on two commits of a real repository, and what it writes there."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import onnx
import onnx_text
import pytest
import yaml
from harness import GAUNTLET

from wings.comparison.github_action.race_pull_request import models

PROJECT = Path(__file__).parents[3]
SCRIPT = PROJECT / "wings" / "comparison" / "github_action" / "race_pull_request.py"
SMALL = "small (float[n,64] x) => (float[n,10] y) <float[64,10] w> { y = MatMul(x, w) }"
LARGE = """large (float[n,64] x) => (float[n,10] y) <float[64,1024] a, float[1024,1024] b, float[1024,10] c>
{ p = MatMul(x, a) q = MatMul(p, b) r = MatMul(q, b) s = MatMul(r, b) y = MatMul(s, c) }"""
GATES = """name: models-model
train: {kind: onnx, model: models/model.onnx}
data: {kind: synthetic, model: models/model.onnx}
structure: {max_opset: 7}
"""


def git(folder: Path, *words: str) -> str:
    author = ["-c", "user.name=a", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false"]
    return subprocess.run(["git", *author, *words], cwd=folder, capture_output=True, text=True, check=True).stdout


def committed(folder: Path, *texts: str) -> str:
    """Make a repository with a commit for each model, and return the id of the first."""
    git(folder, "init", "-q")
    (folder / "models").mkdir()
    (folder / "gates.yaml").write_text(GATES)
    for text in texts:
        onnx.save(onnx_text.model(text), folder / "models" / "model.onnx")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", text.partition(" ")[0])
    return git(folder, "rev-list", "--max-parents=0", "HEAD").strip()


def raced(folder: Path, base: str, **inputs: str) -> tuple[int, str]:
    """Run the script as the action does, and return its exit code and the job's summary."""
    summary = folder.parent / "summary.md"
    own = {"MODEL": "models/model.onnx", "BASE_SHA": base, "GITHUB_STEP_SUMMARY": str(summary)}
    own |= {"GAUNTLET_HOME": str(folder.parent / "home"), "GAUNTLET_HOST_LOCK": str(folder.parent / "lock")}
    path = os.pathsep.join([str(GAUNTLET.parent), os.environ["PATH"]])
    environment = os.environ | own | {"PATH": path, "PYTHONPATH": str(PROJECT), "BATCH": "1", "ROUNDS": "6"} | inputs
    done = subprocess.run([sys.executable, SCRIPT], cwd=folder, env=environment, capture_output=True, text=True)
    assert "Traceback" not in done.stderr, done.stderr
    assert git(folder, "worktree", "list").count("\n") == 1
    return done.returncode, summary.read_text() + done.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder for a repository; hides the one of this folder's conftest."""
    (tmp_path / "repository").mkdir()
    return tmp_path / "repository"


@pytest.mark.slow
def test_faster_model_passes_with_a_table_of_intervals(folder: Path) -> None:
    code, text = raced(folder, committed(folder, LARGE, SMALL))
    assert code == 0, text
    assert "### Race of `models/model.onnx`: passed" in text
    assert "| base | ort-cpu | 1 | " in text
    assert "| pull request | ort-cpu | 1 | " in text
    assert "] | faster |" in text
    assert "Files: base 4.498 MB, pull request 0.0026" in text


@pytest.mark.slow
def test_model_that_is_proven_slower_fails_unless_it_may_be(folder: Path) -> None:
    base = committed(folder, SMALL, LARGE)
    code, text = raced(folder, base)
    assert code == 1
    assert "- `on ort-cpu, batch 1: proven slower than base, 0." in text
    code, text = raced(folder, base, MAX_SLOWDOWN="1e9")
    assert code == 0, text


@pytest.mark.slow
def test_file_that_is_no_model_fails(folder: Path) -> None:
    base = committed(folder, SMALL)
    (folder / "models" / "model.onnx").write_bytes(b"no model `@everyone`\n## heading")
    code, text = raced(folder, base)
    assert code == 1, text
    assert "failed:\n\n- `on ort-cpu: " in text
    assert "\n## heading" not in text


@pytest.mark.slow
def test_target_that_the_runner_lacks_proves_nothing(folder: Path) -> None:
    code, text = raced(folder, committed(folder, SMALL), TARGETS="ort-coreml")
    assert code == 2, text
    assert "- `targets: nothing was raced: ort-coreml: unavailable: " in text


@pytest.mark.nightly
@pytest.mark.usefixtures("prefect_server")
def test_gate_of_a_configuration_fails_the_action(folder: Path) -> None:
    code, text = raced(folder, committed(folder, SMALL), GATES="gates.yaml")
    assert code == 1, text
    assert "- `gates.yaml: structure: " in text
    assert "max_opset" in text


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"MODEL": "none.onnx"}, "model: none.onnx: no such file in the repository"),
        ({"MODEL": "../x.onnx"}, "model: ../x.onnx: no such file in the repository"),
        ({"BASE_SHA": "--all"}, "base: '--all': expected a commit's full id"),
        ({"BASE_SHA": "0" * 40}, "base: fatal"),
        ({"MAX_SLOWDOWN": "much"}, "max-slowdown: 'much': expected a share of at least 0"),
        ({"DATA": "$(touch made)"}, "gauntlet bench: gauntlet: $(touch made): no such file"),
    ],
)
def test_wrong_input_ends_with_2_and_says_what_to_change(folder: Path, inputs: dict[str, str], message: str) -> None:
    code, text = raced(folder, committed(folder, SMALL), **inputs)
    assert code == 2, text
    assert message in text
    assert not (folder / "made").exists()


def test_base_is_fetched_where_the_clone_is_shallow(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = committed(folder, SMALL, LARGE)
    clone = folder.parent / "clone"
    git(folder.parent, "clone", "-q", "--depth", "1", folder.as_uri(), str(clone))
    monkeypatch.chdir(clone)
    with models("models/model.onnx", base) as files:
        sizes = [path.stat().st_size for path in files.values()]
    assert sizes[0] < sizes[1]
    assert not files["base"].exists()


def test_model_without_a_base_is_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    base = committed(folder, SMALL)
    (folder / "models" / "new.onnx").write_bytes(b"new")
    monkeypatch.chdir(folder)
    with models("models/new.onnx", base) as files:
        assert [*files] == ["pull request"]


class Comments(BaseHTTPRequestHandler):
    """GitHub's comments of one pull request, as its REST interface has them."""

    stored: list[dict[str, Any]]

    def do_GET(self) -> None:
        self.respond(self.stored if self.path.endswith("page=1") else [])

    def do_POST(self) -> None:
        self.stored.append({"url": f"http://{self.headers['Host']}/comments/{len(self.stored)}", **self.content()})
        self.respond(self.stored[-1])

    def do_PATCH(self) -> None:
        self.stored[int(self.path.rpartition("/")[2])] |= self.content()
        self.respond({})

    def content(self) -> Any:
        assert self.headers["Authorization"] == "Bearer secret"
        return json.loads(self.rfile.read(int(self.headers["Content-Length"])))

    def respond(self, content: Any) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps(content).encode())


@pytest.fixture
def comments() -> Iterator[ThreadingHTTPServer]:
    Comments.stored = [{"url": "", "body": "a person's"}]
    with ThreadingHTTPServer(("127.0.0.1", 0), Comments) as server:
        threading.Thread(target=server.serve_forever).start()
        yield server
        server.shutdown()


def test_comment_is_written_once_and_then_replaced(folder: Path, comments: ThreadingHTTPServer) -> None:
    base = committed(folder, SMALL)
    api = f"http://127.0.0.1:{comments.server_port}"
    github = {"GITHUB_API_URL": api, "GITHUB_REPOSITORY": "a/b", "PULL_REQUEST": "7", "GITHUB_TOKEN": "secret"}
    raced(folder, base, MAX_SLOWDOWN="much", **github)
    raced(folder, base, MAX_SLOWDOWN="more", **github)
    _, comment = Comments.stored
    assert comment["body"].startswith("<!-- onnx-gauntlet: models/model.onnx -->\n### Race of")
    assert "'more'" in comment["body"]


def test_token_that_may_not_write_is_a_warning(folder: Path, comments: ThreadingHTTPServer) -> None:
    api = f"http://127.0.0.1:{comments.server_port}"
    comments.shutdown()
    comments.server_close()
    github = {"GITHUB_API_URL": api, "GITHUB_REPOSITORY": "a/b", "PULL_REQUEST": "7", "GITHUB_TOKEN": "secret"}
    code, text = raced(folder, committed(folder, SMALL), MAX_SLOWDOWN="much", **github)
    assert code == 2
    assert "::warning::no comment was written" in text


def test_no_input_is_written_into_the_text_of_a_shell() -> None:
    action = yaml.safe_load((PROJECT / "action.yml").read_text())
    steps = [step for step in action["runs"]["steps"] if "run" in step]
    assert {step["shell"] for step in steps} == {"bash"}  # a composite action must say which
    commands = [step["run"] for step in steps]
    assert all("$GITHUB_ACTION_PATH" in command for command in commands)  # the user's repository has none of ours
    assert SCRIPT.relative_to(PROJECT).as_posix() in commands[-1]
    assert not [command for command in commands if "${{" in command]
    written = {value for step in action["runs"]["steps"] for value in step.get("env", {}).values()}
    assert {f"${{{{ inputs.{name} }}}}" for name in action["inputs"]} <= written
