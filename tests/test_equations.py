"""Each equation and algorithm of the paper has one function that names it; fast twins name what they replace."""

import ast
import re
from pathlib import Path

import pytest

import raxss

SOURCES = Path(raxss.__file__).parent
FORMULAS = {
    "Eq. (1)": "retrieve",
    "Eq. (2)": "window_weights",
    "Eq. (3)": "series_probability",
    "Eq. (4)": "weight_without",
    "Alg. 1": "train_epoch",
    "Alg. 2": "aggregate",
}


def functions():
    """Name, with the class where it is in one, and docstring of every function of the package."""
    for path in sorted(SOURCES.rglob("*.py")):
        tree = ast.parse(path.read_text("utf-8"))
        homes = [
            ("", tree),
            *((f"{item.name}.", item) for item in ast.walk(tree) if isinstance(item, ast.ClassDef)),
        ]
        for owner, home in homes:
            for item in home.body:
                if isinstance(item, ast.FunctionDef):
                    yield owner + item.name, ast.get_docstring(item) or ""


DOCSTRINGS = list(functions())


@pytest.mark.parametrize(("formula", "function"), FORMULAS.items())
def test_one_function_implements_it(formula, function):
    assert [name for name, text in DOCSTRINGS if f"Implements {formula}" in text] == [function]


def test_nothing_else_is_implemented_from_the_paper():
    found = {
        item for _, text in DOCSTRINGS for item in re.findall(r"Implements ((?:Eq|Alg)\. \(?\d\)?)", text)
    }
    assert found == set(FORMULAS)


def test_no_formula_is_written_a_second_time():
    """A docstring that begins a line with an equation's number claims it."""
    claimed = [
        name for name, text in DOCSTRINGS if re.search(r"^\s*(Eqs?|Alg)\. \(?\d\)?:", text, re.MULTILINE)
    ]
    assert claimed == []


def test_twins_name_a_function_that_is_there():
    names = {name for name, _ in DOCSTRINGS}
    twins = {name: re.findall(r"Twin of `([\w.]+)`", text) for name, text in DOCSTRINGS if "Twin of" in text}
    assert {"aggregate_batch", "batch_support", "feature_support", "_one_list"} <= set(twins)
    for name, replaced in twins.items():
        assert len(replaced) == 1, name
        assert replaced[0] in names, f"{name} is a twin of {replaced[0]}"


CALLED_IN = {
    "window_weights": {"method/weighting/protocol.py", "method/aggregation.py"},
    "series_probability": {"method/aggregation.py"},
    "aggregate": {"method/inference.py", "explain/findings.py"},  # of a prediction; of evidence that was kept
    "aggregate_batch": {"method/training/loop.py", "method/training/step.py"},
}


@pytest.mark.parametrize(("function", "places"), CALLED_IN.items())
def test_windows_become_a_series_score_on_one_path(function, places):
    found = set()
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function:
                found.add(path.relative_to(SOURCES).as_posix())
    assert found == places
