"""The result of a race on GitHub: in the job's summary, and as one comment that later races replace."""

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

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
