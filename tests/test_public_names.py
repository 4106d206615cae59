"""The names that users import, that they come lazily, and the tree of errors."""

import builtins
import inspect
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import raxss
from raxss import errors


def test_the_public_names_are_exactly_these():
    classes = "Series SeriesCollection Retrieval SeriesEvidence Config RAxSSClassifier"
    functions = "windows_of retrieve aggregate window_weights trace"
    assert set(raxss.__all__) == {*classes.split(), *functions.split(), "__version__"}
    assert dir(raxss) == sorted(raxss.__all__)


@pytest.mark.parametrize("name", [name for name in raxss.__all__ if name != "__version__"])
def test_every_public_name_is_there_and_says_what_it_is(name):
    found = getattr(raxss, name)
    assert found.__name__ == name
    assert inspect.getdoc(found)


def test_the_classifier_is_also_in_its_package():
    from raxss.estimator import RAxSSClassifier

    assert RAxSSClassifier is raxss.RAxSSClassifier


@pytest.mark.parametrize("module", ["raxss", "raxss.estimator"])
def test_an_unknown_name_is_answered_with_the_known_ones(module):
    with pytest.raises(AttributeError, match=r"no attribute 'Classifier'.*RAxSSClassifier"):
        _ = import_module(module).Classifier


def test_importing_raxss_loads_none_of_its_dependencies():
    heavy = ("torch", "numpy", "numba", "sklearn", "scipy", "pandas", "matplotlib", "pyarrow")
    script = f"import sys, raxss; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True)
    assert done.stdout.decode().strip() == "[]"


def drawn_tree():
    """(name, bases) of each class in the drawing at the top of errors.py."""
    above = []
    for line in errors.__doc__.splitlines():
        drawn = re.match(r"^    ([│├└─ ]*)([A-Z]\w+)(?: \((\w+)\))?", line)
        if drawn:
            depth = len(drawn[1]) // 4
            above[depth:] = [drawn[2]]
            yield drawn[2], above[depth - 1] if depth else None, drawn[3]


def test_the_tree_of_errors_is_the_one_drawn_in_its_header():
    drawn = list(drawn_tree())
    defined = [
        name
        for name, value in vars(errors).items()
        if inspect.isclass(value) and value.__module__ == errors.__name__
    ]
    assert [name for name, _, _ in drawn] == defined
    for name, parent, builtin in drawn:
        bases = [getattr(errors, parent)] if parent else []
        bases += [getattr(builtins, builtin)] if builtin else []
        assert getattr(errors, name).__bases__ == tuple(bases or [Exception])


def test_nearest_guesses_only_what_is_near():
    assert (
        errors.did_you_mean("cosin", ["pearson", "cosine"])
        == "; did you mean 'cosine'? Known: pearson, cosine."
    )
    assert errors.did_you_mean("xyz", ["pearson", "cosine"]) == ". Known: pearson, cosine."


def test_the_changelog_has_an_entry_for_this_version():
    changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    assert f"## [{raxss.__version__}]" in changelog
