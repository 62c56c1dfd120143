import pytest

from gauntlet.reporting.markdown_report import escape, render_markdown


def test_a_passed_run(passed):
    text = render_markdown(passed)
    assert text.startswith("# ✓ digits-resnet18: passed\n\n**Winner: static-u8s8** · **3.72x [3.65, 3.80]** at batch 1")
    assert "98.9 % accuracy (fp32: 99.2 %) · 11.3 MB (fp32: 44.7 MB)" in text
    assert "| **static-u8s8** | ✓ winner | 98.9 % | 34.1 | 11.3 MB | 1 | 1.05 ms | 3.72x [3.65, 3.80] |" in text
    assert "| ✗ rejected | accuracy.max_accuracy_drop | static-s8s8 | 0.0417 | ≤ 0.01 | 360 samples | calibrate" in text
    assert "| accuracy | ✓ passed | 4.00 s | 5 candidates, 1 rejected |" in text
    assert "[MLflow](http://127.0.0.1:5000/#/experiments/1)" in text
    assert "javascript" not in text
    assert len(text.splitlines()) < 60


def test_a_failed_run(stopped_at_numerics):
    text = render_markdown(stopped_at_numerics)
    assert text.startswith(
        "# ✗ digits-resnet18: failed\n\n**Stopped at numerics.**\n\n## What stopped the run\n\n- **numerics."
    )
    assert ".  \n  **Fix:** look at that node; if the difference is acceptable, set numerics.max_rel_error\n" in text
    assert text.count("look at that node") == 1
    assert "## Candidates" not in text


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("a|b", r"a\|b"),
        ("a\n| b |\r\nc", r"a \| b \| c"),
        ("<b>&lt;", "&lt;b&gt;&amp;lt;"),
        ("[x](javascript:alert(1))", r"[x\](javascript:alert(1))"),
        ("min_accuracy of _all_", r"min_accuracy of \_all\_"),
        ("# not a heading", r"\# not a heading"),
        ("1. no list", r"1\. no list"),
        ("3.72x [3.65, 3.80]", "3.72x [3.65, 3.80]"),
        ("`**~~", r"\`\*\*\~\~"),
    ],
)
def test_escape(text, written):
    assert escape(text) == written
