"""What a search has found out so far, on disk line by line: after a kill, it is not asked again."""

import json
from collections.abc import Callable
from pathlib import Path
from time import monotonic

from tasks.artifact import write_whole
from tasks.frozen import JsonObject


class Journal:
    """Answers by question. A line that a kill cut short is forgotten."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start, self._before = monotonic(), 0.0
        self._answers: dict[str, JsonObject] = {}
        kept = b""
        for line in path.read_bytes().splitlines(keepends=True) if path.exists() else []:
            try:
                entry = json.loads(line)
                self._answers[entry["question"]] = entry["answer"]
            except (ValueError, KeyError, TypeError):
                break
            if not line.endswith(b"\n"):
                break
            self._before += entry["seconds"]
            kept += line
        write_whole(path, kept.decode())

    def __len__(self) -> int:
        return len(self._answers)

    @property
    def seconds(self) -> float:
        """Since it was opened, and what the answers took that it already had."""
        return self._before + monotonic() - self._start

    def answer(self, question: str, find_out: Callable[[], JsonObject]) -> JsonObject:
        """Return the answer to a question, found out at most once."""
        if question not in self._answers:
            start = monotonic()
            answer = find_out()
            line = json.dumps({"question": question, "answer": answer, "seconds": monotonic() - start})
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            self._answers[question] = answer
        return self._answers[question]
