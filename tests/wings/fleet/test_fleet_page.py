"""The page of many models."""

from wings.fleet.library.fleet_report import FleetReport, FleetResult, render_fleet

SMALL = FleetResult(
    model="a/small.onnx",
    verdict="passed",
    run_id="20260101-000000-small-ab12",
    winner="static-u8s8",
    speedup=1.72,
    speedup_low=1.68,
    speedup_high=1.75,
    metric="accuracy",
    quality=0.987,
    size_bytes=1_000_000,
    original_size_bytes=4_000_000,
    seconds=12,
)
BROKEN = FleetResult(model="<b>.onnx", verdict="invalid", reason="<b>.onnx: not an ONNX file")


def report(*results: FleetResult) -> FleetReport:
    return FleetReport(
        fleet_id="f",
        folder="/models",
        settings=("a=1",),
        started_at="2026-01-01T00:00:00+00:00",
        seconds=60,
        results=results,
    )


def test_page_names_every_model_with_its_verdict_and_links_to_its_run() -> None:
    page = render_fleet(report(SMALL, BROKEN))
    assert "1 of 2 passed" in page
    assert 'href="../../runs/20260101-000000-small-ab12/report.html"' in page
    assert "1.72x [1.68, 1.75]" in page
    assert "98.7 % accuracy" in page
    assert "1.0 MB of 4.0 MB" in page
    assert "&lt;b&gt;.onnx: invalid" in page
    assert "<b>.onnx" not in page
    assert "<script" not in page


def test_page_of_a_fleet_that_passed_has_no_list_of_failures() -> None:
    page = render_fleet(report(SMALL))
    assert "1 of 1 passed" in page
    assert "Not passed" not in page
