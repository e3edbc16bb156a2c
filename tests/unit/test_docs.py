"""What the documentation shows is what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from markdown_it import MarkdownIt

from cdcwatch.configuration import load_settings
from cdcwatch.settings import Settings
from tools.reference.keys import defaults, reference
from tools.reference.pages import out_of_date

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_generated_pages_are_what_the_code_gives() -> None:
    assert out_of_date() == [], "make docs writes them anew"


def test_the_defaults_that_the_configuration_page_shows_are_a_file_of_them(tmp_path: Path) -> None:
    file = tmp_path / "shown.toml"
    file.write_text(defaults().removeprefix("```toml\n").removesuffix("```\n"))
    assert load_settings(file, {}) == Settings()
    page = reference()
    for section in set(Settings().__struct_fields__) - {"tables"}:
        for key in getattr(Settings(), section).__struct_fields__:
            assert f"| `{key}` |" in page or f"### `[{section}.{key}]`" in page, f"[{section}] {key} is not shown"


def test_every_key_says_what_it_is() -> None:
    assert [line for line in reference().splitlines() if line.startswith("| `") and line.endswith("|  |")] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def sections(page: Path) -> set[str]:
    """What `#…` may lead to, as GitHub makes it of the headings."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_to_sections_lead_to_one(page: Path) -> None:
    for target, section in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", page.read_text()):
        if not target.startswith("http") and (target.endswith(".md") or not target):
            assert section in sections(page.parent / target if target else page), f"{target}#{section}"


def uneven_rows(text: str) -> list[str]:
    """Rows of tables that have not as many cells as their head: mostly a bar that no backslash stands before."""
    lines, found = text.splitlines(), []
    for token in MarkdownIt().enable("table").parse(text):
        if token.type == "table_open" and token.map:
            first, end = token.map
            rows = [re.sub(r"\\\|", "", line).strip().strip("|") for line in lines[first:end] if line.strip()]
            found += [row for row in rows if row.count("|") != rows[1].count("|")]
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_row_of_a_table_has_as_many_cells_as_its_head(page: Path) -> None:
    assert uneven_rows(page.read_text()) == []


def test_a_bar_in_a_cell_is_found() -> None:
    head = "| a | b |\n|---|---|\n"
    assert uneven_rows(head + "| `x\\|y` | 2 |\n") == []
    assert uneven_rows(head + "| `x|y` | 2 |\n") == [" `x|y` | 2 "]


def test_exit_code_4_is_said_alike() -> None:
    runbook, said = (ROOT / "docs/runbook.md").read_text(), "nothing of that was confirmed"
    assert said in (ROOT / "docs/cli.md").read_text()
    assert runbook.count(said) == 2


def test_the_runbook_answers_every_alarm_and_names_every_command() -> None:
    runbook = (ROOT / "docs/runbook.md").read_text()
    outlook = (ROOT / "cdcwatch/slot/outlook.py").read_text() + (ROOT / "cdcwatch/inspection/state.py").read_text()
    alarms = set(re.findall(r"Alarm\(\s*\"(\w+)\"", outlook))
    assert len(alarms) == 8
    assert [alarm for alarm in alarms if f"| `{alarm}` |" not in runbook] == []
    for command in ("create", "status", "list", "peek", "advance", "drop"):
        assert f"cdcwatch slot {command}" in runbook
    # Errors refer to sections by their titles.
    for path in sorted((ROOT / "cdcwatch").rglob("*.py")):
        for title in re.findall(r"docs/runbook\.md, '([^']+)'", path.read_text()):
            assert f"# {title}\n" in runbook, f"{path.name}: no section {title!r}"
    thresholds = re.search(r"cdcwatch slot status --max-lag (\w+) --max-retained (\w+) --min-time-left (\w+)", runbook)
    assert thresholds is not None
    assert thresholds.groups() == ("1GB", "16GB", "4h")


def test_the_tests_that_show_the_guarantees_exist() -> None:
    page = (ROOT / "docs/guarantees.md").read_text()
    for path in re.findall(r"`(tests/[\w/.]+)`", page):
        assert (ROOT / path).exists(), path
    code = "\n".join(path.read_text() for path in sorted((ROOT / "tests").rglob("test_*.py")))
    named = set(re.findall(r"`(test_\w+)`", page))
    assert len(named) > 15
    assert [name for name in named if f"def {name}(" not in code] == []
    mutations = (ROOT / "tests/simulation/mutations.py").read_text()
    assert page.count("†") > 10
    assert "deadline_guard" in mutations


@pytest.mark.parametrize("picture", sorted((ROOT / "docs").rglob("*.svg")), ids=lambda path: path.name)
def test_pictures_can_be_drawn_and_name_themselves(picture: Path) -> None:
    root = ET.parse(picture).getroot()  # noqa: S314  our own
    assert root.tag.endswith("}svg")
    attributes = [name for element in root.iter() for name in element.attrib]
    assert not [name for name in attributes if name.endswith(("href", "src"))], "nothing is fetched from elsewhere"
