"""The shape of the package: what stands at its root, which modules import one another, which names occur twice."""

import ast
from pathlib import Path

from scripts.measure_tree import classes_twice, cycles, imports, modules

import raxss

ROOT = Path(raxss.__file__).parent
MODULES = modules(ROOT)


def test_no_import_is_relative():
    found = {
        name
        for name, path in MODULES.items()
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.ImportFrom) and node.level
    }
    assert found == set()


def test_cycles_are_found():
    assert {"a", "b"} in cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}})


def test_the_root_has_four_modules_and_ten_packages_at_most():
    assert len(list(ROOT.glob("*.py"))) <= 4
    assert len([path for path in ROOT.iterdir() if (path / "__init__.py").exists()]) <= 10


def test_no_more_than_three_modules_import_one_another():
    assert [sorted(cycle) for cycle in cycles(imports(MODULES)) if len(cycle) > 3] == []


def test_no_module_imports_the_root_of_the_package():
    inside = {name for name, targets in imports(MODULES).items() if "raxss" in targets}
    assert inside == set()


def test_no_public_class_name_occurs_twice():
    assert classes_twice(MODULES) == []
