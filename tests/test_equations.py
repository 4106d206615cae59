"""Each equation and algorithm of the paper has one function that names it; fast twins name what they replace."""

import ast
import re
from pathlib import Path

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
        for home in ast.walk(tree):
            if isinstance(home, ast.Module | ast.ClassDef):
                owner = f"{home.name}." if isinstance(home, ast.ClassDef) else ""
                for item in home.body:
                    if isinstance(item, ast.FunctionDef):
                        yield owner + item.name, ast.get_docstring(item) or ""


DOCSTRINGS = list(functions())


def test_one_function_implements_each():
    found = [
        (formula, name)
        for name, text in DOCSTRINGS
        for formula in re.findall(r"Implements ((?:Eq|Alg)\. \(?\d\)?)", text)
    ]
    assert sorted(found) == sorted(FORMULAS.items())


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


def test_windows_become_a_series_score_on_one_path():
    found = {function: set() for function in CALLED_IN}
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in found:
                found[node.func.id].add(path.relative_to(SOURCES).as_posix())
    assert found == CALLED_IN
