"""A recipe that says where it was recorded is on that page, and one that a page ran says so."""

import re
from pathlib import Path

import pytest

from tacit.tasks import catalogue

ROOT = Path(__file__).parents[2]
RESULTS = sorted((ROOT / "docs" / "results").glob("*.md"))
RECORDS = catalogue.records()
NAMES = catalogue.names()

# tacit train NAME ..., tacit papers nlu NAME ..., in what a page says was run.
_COMMAND = re.compile(r"\btacit (?:train|papers \S+) +([\w-]+)(?=\s|$)")


def slug(heading: str) -> str:
    """The anchor that a heading gets on the website."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", heading).strip().lower())


def names_in(text: str) -> set[str]:
    """The recipes that a text names; the name of a longer one is not that of a shorter."""
    return set(re.findall(r"[\w-]+", text)) & set(NAMES)


def ran_on(page: str) -> set[str]:
    """The recipes whose commands are among those that a page says were run."""
    blocks = re.findall(r"^```console.*?\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return {name for block in blocks for name in _COMMAND.findall(block)} & set(NAMES)


def test_the_tables_name_recipes_that_there_are():
    assert set(RECORDS) <= set(NAMES)
    assert RECORDS.keys() & {"mcmahan2018", "secret-sharer-small", "dupuy2021-clc", "demo"}


@pytest.mark.parametrize("name", RECORDS)
def test_a_recorded_recipe_is_on_its_page(name):
    path, _, anchor = RECORDS[name].page.partition("#")
    page = ROOT / path
    assert page in RESULTS, f"{name} is said to be recorded on {path}, which is no page of results"
    text = page.read_text(encoding="utf-8")
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert not anchor or anchor in map(slug, headings)
    assert name in names_in(text), f"{path} does not name {name}"
    assert RECORDS[name].how


@pytest.mark.parametrize("page", RESULTS, ids=lambda path: path.stem)
def test_a_recipe_that_a_page_ran_has_a_record(page):
    missing = ran_on(page.read_text(encoding="utf-8")) - set(RECORDS)
    assert not missing, f"{page.name} ran {missing}: add them to RECORDS of their package"


def test_a_recipe_in_a_page_of_commands_is_found():
    page = "```console no-test\n$ tacit train mcmahan2018-table2 --run r\n```\nmcmahan2018-noise\n"
    assert ran_on(page) == {"mcmahan2018-table2"}
    assert names_in(page) == {"mcmahan2018-table2", "mcmahan2018-noise"}
