"""Race a pull request's model against that of its base, and fail on a gate: the script of `action.yml`.

It is called by its path in the folder of the user's repository, whose modules are so never imported. It reads what it
needs from the environment, and calls `gauntlet` and `git`.
"""

import json
import math
import os
import re
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BASE, HEAD = "base", "pull request"
HEADING = "| model | target | batch | latency | speed-up over base | verdict |\n|---|---|---|---|---|---|"


class RaceError(Exception):
    """A wrong input, or a command that gave no result; the message says what to change."""


def main(inputs: Mapping[str, str]) -> int:
    """Race, publish the table, and return the exit code: 1 where a gate failed, 2 where nothing could be raced."""
    model = inputs["MODEL"]
    try:
        allowed = slowdown(inputs)
        with models(model, inputs["BASE_SHA"]) as files:
            measured = bench(files, inputs)
            table, failed = race_table(measured, files), race_failures(measured, files, allowed)
        failed += run_failures(inputs.get("GATES", ""))
        code = 1 if failed else 0
    except RaceError as error:
        table, failed, code = "", [str(error)], 2
    verdict = "passed" if not failed else "failed:\n\n" + "\n".join(f"- {quoted(reason)}" for reason in failed)
    publish(f"### Race of {quoted(model)}: {verdict}\n\n{table}\n", model, inputs)
    return code


@contextmanager
def models(model: str, base: str) -> Iterator[dict[str, Path]]:
    """Give the model's files by side, the base's first if it has one; `base` is a commit, fetched where it is missing.

    The base is checked out beside the clone, so that weights in other files and Git LFS work.
    """
    path = Path(model)
    if path.is_absolute() or ".." in path.parts or not path.is_file():
        raise RaceError(f"model: {model}: no such file in the repository")
    if not re.fullmatch(r"[0-9a-f]{40}", base):
        raise RaceError(f"base: {base!r}: expected a commit's full id. Fix: run the action on pull_request")
    if git("cat-file", "-e", base).returncode:
        done(git("fetch", "--no-tags", "--depth=1", "origin", base), "base")
    with tempfile.TemporaryDirectory() as folder:
        before = Path(folder) / "base"
        done(git("worktree", "add", "--detach", str(before), base), "base")
        try:
            yield {BASE: before / path, HEAD: path.resolve()} if (before / path).is_file() else {HEAD: path.resolve()}
        finally:
            git("worktree", "remove", "--force", str(before))


def bench(files: Mapping[str, Path], inputs: Mapping[str, str]) -> Any:
    """Return what `gauntlet bench` measured; a file of one side that fails is part of it."""
    options = {"--inputs": "DATA", "--targets": "TARGETS", "--batch": "BATCH", "--rounds": "ROUNDS"}
    words = [f"{option}={inputs[name]}" for option, name in options.items() if inputs.get(name)]
    result = called("gauntlet", "bench", "--json", *words, "--", *map(str, files.values()))
    return json.loads(done(result, "gauntlet bench", allowed=1).stdout)


def race_table(measured: Any, files: Mapping[str, Path]) -> str:
    """Return the rows of both sides with their intervals, the sizes of the files, and the noise."""
    lines = [HEADING]
    for side, pair in by_side(measured, files):
        for row in pair["rows"]:
            speedup, low, high = (float(row[name]) for name in ("speedup", "speedup_low", "speedup_high"))
            gain = f"{speedup:.2f}x [{low:.2f}, {high:.2f}]"
            outcome = ("", "") if row["verdict"] == "reference" else (gain, row["verdict"])
            cells = (side, pair["target"], row["batch"], f"{row['median_ms']:.4g} ms", *outcome)
            lines.append(f"| {' | '.join(map(str, cells))} |")
    sizes = ", ".join(f"{side} {path.stat().st_size / 1e6:.4g} MB" for side, path in files.items())
    noise = f"base against itself: {noise_of(measured):.1%} apart" if BASE in files else "the base has no such file"
    return "\n".join(lines) + f"\n\nFiles: {sizes}. {measured['rounds']} rounds with 95 % intervals; {noise}."


def race_failures(measured: Any, files: Mapping[str, Path], slowdown: float) -> list[str]:
    """Return why the pull request's model fails: it does not run, or is slower; `RaceError` where it never raced."""
    limit, failed = 1 / (1 + max(slowdown, noise_of(measured))), list[str]()
    for side, pair in by_side(measured, files):
        if side == HEAD and pair["reason"] and pair["status"] in ("failed", "measured"):
            failed.append(f"on {pair['target']}: {pair['reason']}")
        failed += [
            f"on {pair['target']}, batch {row['batch']}: proven slower than base, {float(row['speedup']):.2f}x its "
            f"speed; max-slowdown is {slowdown:g}"
            for row in pair["rows"]
            if side == HEAD and row["verdict"] == "slower" and float(row["speedup_high"]) < limit
        ]
    own = [pair for side, pair in by_side(measured, files) if side == HEAD]
    if not failed and not any(pair["rows"] for pair in own):
        why = "; ".join(f"{pair['target']}: {pair['status']}: {pair['reason']}" for pair in own)
        raise RaceError(f"targets: nothing was raced: {why}. Fix: name targets that this runner has")
    return failed


def run_failures(config: str) -> list[str]:
    """Return why a run of a configuration fails, none without one."""
    if not config:
        return []
    result = called("gauntlet", "run", "--", config)
    print(result.stdout, result.stderr, sep="\n")  # noqa: T201
    if done(result, f"gauntlet run {config}", allowed=1).returncode == 0:
        return []
    report = json.loads(done(called("gauntlet", "show", "--json"), "gauntlet show").stdout)
    return [f"{config}: {report['stopped_at']}: {report['reason']}"]


def by_side(measured: Any, files: Mapping[str, Path]) -> Iterator[tuple[str, Any]]:
    """Yield every pair with its side: `bench` calls files of one name by their paths, and a file alone by its name."""
    for pair in measured["pairs"]:
        names = {str(path): side for side, path in files.items()}
        yield names.get(pair["candidate"], HEAD), pair


def slowdown(inputs: Mapping[str, str]) -> float:
    """Return the latency that may be added, as a share of the base's."""
    text = inputs.get("MAX_SLOWDOWN") or "0.05"
    try:
        share = float(text)
    except ValueError:
        share = -1.0
    if not 0 <= share < math.inf:
        raise RaceError(f"max-slowdown: {text!r}: expected a share of at least 0, such as 0.05")
    return share


def noise_of(measured: Any) -> float:
    """Return the base's largest deviation from itself; 0 where it was not measured."""
    noise = float(measured["aa_deviation"])
    return noise if math.isfinite(noise) else 0.0


def quoted(text: str) -> str:
    """Return foreign text as code in Markdown, on one line: it mentions nobody, and adds no markup."""
    return f"`{' '.join(text.replace('`', chr(39)).split())[:1000]}`"


def git(*words: str) -> subprocess.CompletedProcess[str]:
    """Call git in the user's repository."""
    return called("git", *words)


def called(*words: str) -> subprocess.CompletedProcess[str]:
    """Call a program; no word is read by a shell."""
    return subprocess.run(words, capture_output=True, text=True, check=False)


def done(result: subprocess.CompletedProcess[str], what: str, allowed: int = 0) -> subprocess.CompletedProcess[str]:
    """Return what a program did; raise `RaceError` where its exit code is above the allowed one."""
    if not 0 <= result.returncode <= allowed:
        raise RaceError(f"{what}: {result.stderr.strip() or f'exit code {result.returncode}'}")
    return result


TIMEOUT_S = 30


def publish(text: str, model: str, environment: Mapping[str, str]) -> None:
    """Write Markdown to the log, to the job's summary, and to the pull request if there is a token for it.

    A token that may not write, such as that of a fork's pull request, is a warning.
    """
    print(text)  # noqa: T201
    if summary := environment.get("GITHUB_STEP_SUMMARY"):
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(text)
    number, token = environment.get("PULL_REQUEST", ""), environment.get("GITHUB_TOKEN", "")
    if not (number.isdecimal() and token):
        return
    issues = f"{environment['GITHUB_API_URL']}/repos/{environment['GITHUB_REPOSITORY']}/issues"
    marker = f"<!-- onnx-gauntlet: {model.replace('>', '')} -->"
    try:
        url = _own(f"{issues}/{number}/comments", marker, token)
        address, method = (url, "PATCH") if url else (f"{issues}/{number}/comments", "POST")
        _request(address, token, method, {"body": f"{marker}\n{text}"})
    except (OSError, ValueError) as error:
        print(f"::warning::no comment was written: {' '.join(str(error).split())}")  # noqa: T201


def _own(comments: str, marker: str, token: str) -> str:
    """Return the address of the comment of an earlier race; empty where there is none."""
    page = 1
    while written := _request(f"{comments}?per_page=100&page={page}", token):
        for comment in written:
            if comment["body"].startswith(marker):
                return str(comment["url"])
        page += 1
    return ""


def _request(url: str, token: str, method: str = "GET", content: Any = None) -> Any:
    headers = {"Authorization": f"Bearer {token}", "Accept": "application/vnd.github+json"}
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(url, body, headers, method=method)
    with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:
        return json.load(response)


if __name__ == "__main__":
    sys.exit(main(os.environ))
