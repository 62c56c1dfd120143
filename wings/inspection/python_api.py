"""What `gauntlet.diagnose` does: `gauntlet diagnose`, without its list on the terminal."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.from_python import home_for, options_for

if TYPE_CHECKING:
    from wings.inspection.library.diagnosis.findings import Diagnosis


def diagnose(model: Any, data: Any, *, home: str | Path | None, **options: Any) -> "Diagnosis":
    """See `gauntlet.diagnose`."""
    with home_for(home) as place:
        from configs.brought_objects import model_file, samples_file
        from wings.inspection.diagnose_command import examined

        file = model_file(model, data, place.store)
        samples = samples_file(data, file, place.store)
        found = examined(options_for("diagnose", {"model": file, "data": samples, **options}))
        return found.after or found.before
