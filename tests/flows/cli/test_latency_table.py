"""Latencies on a terminal: with all figures, or those that 80 columns have room for."""

import io

import pytest
from rich.console import Console

from flows.cli.report_tables import latency_table
from gauntlet.core.run_report import BenchmarkRow

ROW = BenchmarkRow(
    target="ort-cpu", batch=8, median_ms=10.0, speedup=2.0, speedup_low=1.9, speedup_high=2.1, verdict="faster",
    calls=400, mean_ms=10.5, p90_ms=12.0, p99_ms=15.0, images_per_second=761.9, peak_rss_bytes=150_000_000,
)  # fmt: skip
UNKNOWN = ROW.replace(batch=1, mean_ms=None, p90_ms=None, p99_ms=None, images_per_second=None, peak_rss_bytes=None)


@pytest.mark.parametrize(("width", "all_columns"), [(80, False), (120, True)])
def test_table_has_what_the_width_has_room_for(width: int, *, all_columns: bool) -> None:
    console = Console(file=io.StringIO(), width=width)
    name = "pruned-25-static-u8s8-percentile99.99"
    console.print(latency_table([((name,), ROW), (("fp32",), UNKNOWN)], ("candidate",), width))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(" ".join(lines).split())
    assert ("10.5 ms 12.0 ms" in text, "mean p90" in text) == (all_columns, all_columns)
    assert "10.0 ms" in text
    assert "15.0 ms 762 150.0 MB" in text
    assert "batch median" in text
    assert text.endswith("– – –" if not all_columns else "– – – – –")


def test_column_without_any_figure_is_left_out() -> None:
    console = Console(file=io.StringIO(), width=120)
    console.print(latency_table([(("fp32",), UNKNOWN), (("small",), ROW.replace(p99_ms=None))], ("candidate",), 120))
    assert "p99" not in console.file.getvalue()
    assert "p90" in console.file.getvalue()


def test_long_names_of_models_and_targets_leave_room_for_the_figures() -> None:
    console = Console(file=io.StringIO(), width=80)
    words = ("mobilenet_v3_small_int8_static_percentile", "openvino-int8-throughput")
    console.print(latency_table([(words, ROW)], ("model", "target"), 80))
    text = console.file.getvalue()
    assert max(map(len, text.splitlines())) <= 80
    assert "…" not in text
    assert "150.0 MB" in text
