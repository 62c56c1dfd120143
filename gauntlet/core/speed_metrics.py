"""The names under which MLflow shows the rows of a race."""

from gauntlet.core.run_report import BenchmarkRow


def speed_metrics(rows: tuple[BenchmarkRow, ...], *, elsewhere: bool = False) -> dict[str, float | None]:
    """Return latency, speed-up, throughput and memory by batch size.

    Names of rows on another target than the first row's, and of all rows of a race elsewhere, have a prefix.
    """
    values: dict[str, float | None] = {}
    for row in rows:
        own = row.target == rows[0].target and not elsewhere
        place = f"b{row.batch}" if own else f"{row.target}.b{row.batch}"
        values |= {f"latency.{place}.p50_ms": row.median_ms, f"speedup.{place}": row.speedup}
        values |= {f"speedup.{place}.low": row.speedup_low, f"speedup.{place}.high": row.speedup_high}
        times = {"mean": row.mean_ms, "p90": row.p90_ms, "p99": row.p99_ms}
        values |= {f"latency.{place}.{name}_ms": time for name, time in times.items()}
        values[f"throughput.{place}.images_per_second"] = row.images_per_second
        values[f"memory.{place}.peak_mb"] = None if row.peak_rss_bytes is None else row.peak_rss_bytes / 1e6
    return values
