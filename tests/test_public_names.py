"""The names that users import, that they come lazily, and the tree of errors."""

import inspect
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import raxss
from raxss import errors


def test_the_public_names_are_exactly_these():
    classes = "Series SeriesCollection Retrieval SeriesEvidence Config RAxSSClassifier AutoRAxSS"
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


def test_every_error_is_also_a_builtin_error_that_fits():
    builtin = {
        errors.DataError: ValueError,
        errors.ConfigError: ValueError,
        errors.BackboneError: TypeError,
        errors.TrainingError: ArithmeticError,
        errors.ModelError: ValueError,
        errors.LibraryError: ValueError,
        errors.OutputError: OSError,
        errors.MissingExtraError: ImportError,
        errors.TooSlowError: RuntimeError,
    }
    assert {kind: kind.__bases__ for kind in builtin} == {
        kind: (errors.RAxSSError, base) for kind, base in builtin.items()
    }
    assert set(errors.RAxSSError.__subclasses__()) == set(builtin)
    assert issubclass(errors.RAxSSWarning, UserWarning)


def test_nearest_guesses_only_what_is_near():
    assert (
        errors.did_you_mean("cosin", ["pearson", "cosine"])
        == "; did you mean 'cosine'? Known: pearson, cosine."
    )
    assert errors.did_you_mean("xyz", ["pearson", "cosine"]) == ". Known: pearson, cosine."


def test_the_changelog_has_an_entry_for_this_version():
    changelog = (Path(__file__).parents[1] / "CHANGELOG.md").read_text()
    assert f"## [{raxss.__version__}]" in changelog
