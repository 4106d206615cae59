"""Documents: README, docs and recipes name files that exist, and the README stays short."""

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


@pytest.mark.parametrize("document", DOCUMENTS, ids=relative)
def test_links_lead_to_files_that_exist(document):
    targets = re.findall(r"\]\(([^)\s#]+)(?:#[^)]*)?\)", document.read_text("utf-8"))
    local = [target for target in targets if not re.match(r"[a-z]+://|mailto:", target)]
    assert [target for target in local if not (document.parent / target).exists()] == []


def test_the_readme_has_fewer_than_150_lines():
    assert len((ROOT / "README.md").read_text("utf-8").splitlines()) < 150


def test_the_readme_cites_this_version():
    assert f"version {raxss.__version__}" in (ROOT / "README.md").read_text("utf-8")


def test_every_document_is_reachable_from_the_readme():
    text = (ROOT / "README.md").read_text("utf-8")
    assert [path.name for path in (ROOT / "docs").glob("*.md") if f"docs/{path.name}" not in text] == []


def test_releases_in_the_changelog_have_dates():
    heads = re.findall(r"^## \[(.+?)\](.*)$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert heads[0] == ("Unreleased", "")
    assert [name for name, rest in heads[1:] if not re.fullmatch(r" - \d{4}-\d\d-\d\d", rest)] == []
