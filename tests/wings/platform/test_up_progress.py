"""`gauntlet up` names each part when it is ready, because all of them together take a minute."""

import io
from pathlib import Path

from rich.console import Console

from flows.record.home import Home
from wings.platform.supervisor import PartState, PlatformState, state_file
from wings.platform.up_command import _wait_until_ready


def test_each_part_is_named_when_it_is_ready(tmp_path: Path) -> None:
    home, shown = Home(tmp_path), io.StringIO()
    parts = tuple(PartState(name=name, ready=True) for name in ("prefect", "mlflow"))
    state_file(home).parent.mkdir(parents=True)
    state_file(home).write_text(PlatformState(supervisor=PartState(name="supervisor"), parts=parts).model_dump_json())
    assert _wait_until_ready(home, None, Console(file=shown)).parts == parts
    assert shown.getvalue() == "  prefect is ready\n  mlflow is ready\n"
