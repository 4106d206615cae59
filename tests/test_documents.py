"""Documents: links of README, docs and recipes lead somewhere, and the README stays short."""

import re
from pathlib import Path

import pytest

import raxss

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "studies/README.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]


def relative(path):
    return path.relative_to(ROOT).as_posix()


def anchors(document):
    """Names of its sections in links, as GitHub forms them."""
    titles = re.findall(r"^#+ (.+)$", document.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_to_files_and_sections_that_exist(document):
    for file, section in re.findall(r"\]\(([^)\s#]*)(?:#([^)]*))?\)", document.read_text("utf-8")):
        if not re.match(r"[a-z]+://|mailto:", file):
            target = document.parent / file if file else document
            assert target.exists(), file
            assert not section or section in anchors(target), f"{file}#{section}"


def test_the_readme_has_fewer_than_150_lines():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 150


def test_the_readme_cites_this_version():
    assert f"version = {{{raxss.__version__}}}" in (ROOT / "README.md").read_text("utf-8")


def test_every_document_is_reachable_from_the_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in text] == []


def test_releases_in_the_changelog_have_dates():
    heads = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert heads[0] == ("Unreleased", "")
    assert [name for name, rest in heads[1:] if not re.fullmatch(r" - \d{4}-\d\d-\d\d", rest)] == []
