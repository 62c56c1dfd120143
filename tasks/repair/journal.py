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
        self.seconds = 0.0
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
            self.seconds += entry["seconds"]
            kept += line
        write_whole(path, kept.decode())

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, question: str, find_out: Callable[[], JsonObject]) -> JsonObject:
        """Return the answer to a question, found out at most once."""
        if question not in self._answers:
            start = monotonic()
            answer = find_out()
            seconds = monotonic() - start
            line = json.dumps({"question": question, "answer": answer, "seconds": seconds})
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
            self.seconds += seconds
            self._answers[question] = answer
        return self._answers[question]
