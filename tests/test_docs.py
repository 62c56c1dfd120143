"""The commands of the README run, links lead somewhere, and the documentation builds and is what its sources say."""

import argparse
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import needs
import pytest
from harness import command
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from playwright.sync_api import Browser
from results import Result
from static_files import served

PROJECT = Path(__file__).parents[1]
README = (PROJECT / "README.md").read_text()
DOCS = PROJECT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
RESULTS = sorted((DOCS / "results").glob("*.json"))
ZENSICAL = Path(sys.executable).with_name("zensical")


def blocks(language: str, text: str = README) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


def gauntlet_commands(page: Path) -> list[list[str]]:
    """Return the commands that a page shows, without usages such as `gauntlet show [RUN]`, and without redirections."""
    lines = "".join(blocks("console", page.read_text())).replace("\\\n", " ").splitlines()
    commands = [shlex.split(line, comments=True) for line in lines if re.match(r"(\.venv/bin/)?gauntlet [^\[]+$", line)]
    return [words[1 : words.index(">") if ">" in words else None] for words in commands]


COMMANDS = {" ".join(words): words for page in (PROJECT / "README.md", *PAGES) for words in gauntlet_commands(page)}


def test_readme_is_one_screen_of_words() -> None:
    assert len(re.sub(r"```mermaid\n.*?```", "", README, flags=re.DOTALL).split()) <= 350


def test_readme_names_the_make_targets_that_exist() -> None:
    makefile = (PROJECT / "Makefile").read_text()
    named = {line.split()[1] for block in blocks("console") for line in block.splitlines() if line.startswith("make ")}
    assert {"demo", "onnx", "test"} <= named <= {*re.findall(r"^(\w+):", makefile, re.MULTILINE)}
    assert "gauntlet run digits-resnet18" in makefile


def test_every_command_is_shown_on_a_page_and_each_parses() -> None:
    needs.every_wing()
    from flows.cli.options import parser

    [commands] = [action for action in parser()._actions if isinstance(action, argparse._SubParsersAction)]
    assert {words[0] for words in COMMANDS.values()} >= {*commands.choices}
    assert [words[0] for words in gauntlet_commands(PROJECT / "README.md")] == ["run"]
    for words in COMMANDS.values():
        parser().parse_args(words)


@pytest.mark.parametrize("words", [w for w in COMMANDS.values() if w[0] in ("validate", "sync")], ids=" ".join)
def test_command_that_needs_no_run_works(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "configs").symlink_to(PROJECT / "configs")
    done = command(tmp_path, *words)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("page", [PROJECT / "README.md", PROJECT / "CONTRIBUTING.md", *PAGES], ids=lambda p: p.name)
def test_page_links_to_files_that_exist(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


def test_modules_that_are_named_exist() -> None:
    folders = "benchmarks|configs|flows|frameworks|gauntlet|serving|tasks|wings"
    named = {
        PROJECT / name
        for source in (PROJECT / "README.md", *PAGES, *RESULTS, *(PROJECT / "benchmarks").rglob("*.py"))
        for name in re.findall(rf"(?<![\w/])(?:{folders})/[\w/]+\.py\b", source.read_text())
    }
    assert named
    assert not {str(path) for path in named if not path.is_file()}


def test_tests_that_the_page_on_security_names_exist() -> None:
    needs.every_wing()
    written = "".join(path.read_text() for path in (PROJECT / "tests").rglob("test_*.py"))
    named = re.findall(r"`(test_\w+)`", (DOCS / "security.md").read_text())
    assert len(named) > 30
    assert not [name for name in named if f"def {name}(" not in written]


def test_architecture_and_decisions_are_short() -> None:
    pages = [DOCS / "architecture.md", *DOCS.glob("decisions/[0-9]*.md")]
    words = {page.stem: len(page.read_text().split()) for page in pages}
    assert words.pop("architecture") <= 1500
    assert not {name: count for name, count in words.items() if count > 80}


def test_documentation_is_short_in_short_lines_and_has_few_semicolons() -> None:
    texts = [page.read_text() for page in PAGES]
    assert sum(any(map(str.isalnum, word)) for text in texts for word in text.split()) <= 45_000
    written = "".join(text for text in texts if not text.startswith("<!-- Generated"))
    prose = re.sub(r"```.*?```|`[^`\n]*`", "", written, flags=re.DOTALL)
    sentences = re.findall(r"[.!?](?=\s)|\|$", prose, re.MULTILINE)  # a row of a table is one, too
    assert prose.count(";") <= 0.03 * len(sentences)
    lines = re.sub(r"(?ms)^ *```.*?```$|^ *\|[^\n]*", "", "\n".join(texts)).splitlines()  # no code, no tables
    assert not [line for line in lines if len(line) > 100]


def words_of_sentences(text: str) -> list[int]:
    """Return the number of words of each sentence; code counts as one word, headings and items as paragraphs."""
    prose = re.sub(r"(?ms)^ *```.*?```$|^ *\|[^\n]*|\]\([^)]*\)", "", text)
    prose = re.sub(r"`[^`\n]*`", "code", prose)
    paragraphs = re.split(r"\n\s*\n|\n(?=\s*(?:[-*#]|\d+\.) )", prose)
    sentences = chain(*(re.split(r"(?<=[.!?:]) ", " ".join(each.split())) for each in paragraphs))
    return [sum(any(map(str.isalnum, word)) for word in sentence.split()) for sentence in sentences]


@pytest.mark.parametrize("page", [PROJECT / "README.md", *PAGES], ids=lambda path: path.stem)
def test_sentences_of_a_page_have_at_most_25_words(page: Path) -> None:
    text = page.read_text()
    assert text.startswith("<!-- Generated") or max(words_of_sentences(text)) <= 25


def linked(page: Path) -> set[Path]:
    return {(page.parent / name).resolve() for name in re.findall(r"\]\(([^)#:]+\.md)", page.read_text())}


def test_every_page_is_two_clicks_from_the_first() -> None:
    first = linked(DOCS / "index.md")
    assert set(PAGES) <= first.union([DOCS / "index.md"], *map(linked, first))


def generated(*words: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, DOCS / "generate", *words]
    return subprocess.run(command, cwd=PROJECT, capture_output=True, text=True, check=False)


def test_generated_pages_are_what_their_sources_say() -> None:
    needs.every_wing()
    done = generated("--check")
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_pages_are_generated_with_the_base_installation_alone() -> None:
    code = "import runpy, sys; [sys.modules.setdefault(name, None) for name in sys.argv.pop().split()]; "
    code += "sys.argv = ['generate', '--check']; runpy.run_path('docs/generate', run_name='__main__')"
    extras = "torch tensorflow keras jax sklearn prefect mlflow fastapi uvicorn xgboost lightgbm httpx requests"
    done = subprocess.run([sys.executable, "-c", code, extras], cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.slow
def test_generated_page_that_was_edited_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "docs"
    assert generated("--folder", folder).returncode == 0
    page = folder / "reference" / "configuration.md"
    page.write_text(page.read_text().replace("## data", "## Data"))
    done = generated("--check", "--folder", folder)
    assert done.returncode == 1
    assert "reference/configuration.md" in done.stdout
    assert "report.md" not in done.stdout


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.stem)
def test_result_is_complete_and_names_a_command_that_exists(path: Path) -> None:
    result = Result.model_validate_json(path.read_bytes())
    script = re.match(r"(?:python )?((?:benchmarks|docker)/[\w/]+\.(?:py|sh))", result.command)
    assert (PROJECT / script[1]).is_file() if script else result.command.startswith("gauntlet ")
    assert all(len(row) == len(result.columns) for row in result.rows)


def build_site(folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([ZENSICAL, "build", "--strict"], cwd=folder, capture_output=True, text=True, check=False)


def copy_docs(folder: Path) -> Path:
    shutil.copy(PROJECT / "mkdocs.yml", folder)
    shutil.copytree(DOCS, folder / "docs")
    return folder


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = copy_docs(tmp_path_factory.mktemp("docs"))
    done = build_site(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "site"


def test_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert not re.search(r"""<(?:script|img|link)[^>]+(?:src|href)="?(?:https?:)?//""", page.read_text()), page


def test_links_of_the_site_lead_to_files_of_it(site: Path) -> None:
    pages = [page for page in site.rglob("*.html") if page.name != "404.html"]  # which names them from the root
    link = re.compile(r'(?:href|src)="?(?!\w+:)([^"#\s>]+)')
    targets = {page.parent / target for page in pages for target in link.findall(page.read_text())}
    assert len(targets) > len(pages)
    assert [target for target in targets if not target.exists()] == []


@pytest.mark.browser
def test_search_box_finds_a_key_and_asks_no_other_host(site: Path, browser: Browser) -> None:
    page, asked = browser.new_page(), []
    page.on("request", lambda sent: asked.append(sent.url))
    with served(site) as address:
        page.goto(f"{address}/index.html")
        page.get_by_role("button", name="Search").first.click()
        page.keyboard.type("require_speedup")
        page.get_by_text(re.compile(r"^[1-9]\d* results?$")).first.wait_for()
        page.close()
    assert [url for url in asked if not url.startswith((address, "data:", "blob:"))] == []


@pytest.mark.parametrize("link", ["concepts.md#nothing-of-this-name", "nowhere.md"])
def test_site_with_a_broken_link_does_not_build(tmp_path: Path, link: str) -> None:
    (copy_docs(tmp_path) / "docs" / "index.md").write_text(f"# Home\n\n[lost]({link})\n")
    done = build_site(tmp_path)
    assert done.returncode != 0
    assert "does not exist" in done.stdout + done.stderr


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page() -> None:
    text = (PROJECT / "mkdocs.yml").read_text()
    assert sorted(re.findall(r"[:-] (\S+\.md)$", text, re.MULTILINE)) == [str(p.relative_to(DOCS)) for p in PAGES]


def test_constraints_pin_every_package_exactly_and_name_no_host() -> None:
    lines = (PROJECT / "constraints.txt").read_text().splitlines()
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.+!]+", line) for line in lines if line), lines
    pinned = {canonicalize_name(line.partition("==")[0]) for line in lines}
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *chain(*project["optional-dependencies"].values()), "jax2onnx"]
    assert {canonicalize_name(Requirement(line).name) for line in asked} <= pinned
