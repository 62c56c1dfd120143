import math

import pytest

from gauntlet.reporting import text_format as written


@pytest.mark.parametrize(
    ("write", "values"),
    [
        (
            written.number,
            {
                None: "–", math.nan: "NaN", math.inf: "∞", -math.inf: "−∞", 0: "0", -0.5: "−0.5", 1079: "1079",
                11_172_810: "11\u202f172\u202f810", 0.012345: "0.01235", 8.2e-06: "8.2e-6", 1e300: "1e300",
            },
        ),
        (
            written.size,
            {
                None: "–", 0: "0 B", 999: "999 B", 1000: "1.0 kB", 11_300_000: "11.3 MB", 999_960: "1.0 MB",
                2_500_000_000: "2.5 GB", 7e15: "7000.0 TB",
            },
        ),
        (
            written.milliseconds,
            {
                0.01234: "0.0123 ms", 1.05: "1.05 ms", 12.34: "12.3 ms", 123.4: "123 ms", 0: "0.00 ms", None: "–",
                math.nan: "–", math.inf: "∞ ms", 5e-7: "5e-7 ms",
            },
        ),
        (written.percent, {0.989: "98.9 %", 1: "100.0 %", None: "–", math.nan: "NaN"}),
        (
            written.duration,
            {
                0.42: "0.42 s", 12.34: "12.3 s", 192: "3 min 12 s", 3840: "1 h 04 min", None: "–", math.nan: "–",
                math.inf: "–", 9.999: "10.0 s",
            },
        ),
        (
            written.format_time,
            {
                "2026-05-02T14:34:00+02:00": "2026-05-02 12:34 UTC",
                "2026-05-02T12:34:00": "2026-05-02 12:34 UTC",
                "yesterday": "yesterday",
            },
        ),
    ],
)  # fmt: skip
def test_value_is_written_as_people_read_it(write, values):
    assert {value: write(value) for value in values} == values


@pytest.mark.parametrize(
    ("value", "limit", "texts"),
    [
        (0.0123, 1e-4, ("0.0123", "0.0001")),
        (0.9499999, 0.95, ("0.9499999", "0.95")),
        (0.95, 0.95, ("0.95", "0.95")),
        (None, 0, ("–", "0")),
        (math.nan, 1, ("NaN", "1")),
    ],
)
def test_a_value_never_looks_like_a_limit_that_it_misses(value, limit, texts):
    assert written.pair(value, limit) == texts


@pytest.mark.parametrize(
    ("numbers", "text"),
    [
        ((3.72, 3.65, 3.80), "3.72x [3.65, 3.80]"),
        ((math.nan, 1, 2), "–"),
        ((2.0, -math.inf, math.inf), "2.00x [unknown]"),
        ((2.0, 1.5, math.inf), "2.00x [1.50, ∞]"),
    ],
)
def test_speedup(numbers, text):
    assert written.speedup(*numbers) == text


def test_clean_replaces_what_would_break_or_disguise_text():
    assert written.printable("a\x00b\u202ec\ud800d\n") == "a\ufffdb\ufffdc\ufffdd\n"
