"""What `gauntlet.bench` does: `gauntlet bench`, without its table on the terminal."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.from_python import home_for, options_for

if TYPE_CHECKING:
    from wings.comparison.library.target_comparison import BenchResult


def bench(
    models: str | Path | Sequence[str | Path], inputs: Any, *, home: str | Path | None, quiet: bool, **options: Any
) -> "BenchResult":
    """See `gauntlet.bench`."""
    with home_for(home) as place:
        from rich.console import Console

        from configs.brought_objects import samples_file
        from wings.comparison.bench_command import measured

        paths = [str(model) for model in ([models] if isinstance(models, str | Path) else models)]
        samples = samples_file(inputs, next(iter(paths), ""), place.store)
        parsed = options_for("bench", {"models": paths, "inputs": samples, **options})
        return measured(parsed, Console(quiet=quiet))
