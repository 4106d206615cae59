"""The shape of the package: what stands at its root, which modules import one another, which names occur twice."""

import ast
from collections import defaultdict
from pathlib import Path

import pytest

import raxss

ROOT = Path(raxss.__file__).parent


def modules():
    """Dotted name -> path of every module."""
    found = {}
    for path in sorted(ROOT.rglob("*.py")):
        parts = ("raxss", *path.relative_to(ROOT).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports():
    """Dotted name -> modules of the package that it imports, inside functions and for types as well."""
    known = modules()
    graph = {}
    for name, path in known.items():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                assert not node.level, f"{name} has a relative import"
                for alias in node.names:
                    below = f"{node.module}.{alias.name}"
                    targets.add(below if below in known else str(node.module))
        graph[name] = (targets & set(known)) - {name}
    return graph


def cycles(graph):
    """Sets of modules that reach one another (Tarjan's strongly connected components)."""
    index, low, stack, found = {}, {}, [], []

    def visit(name):
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component = set()
            while name not in component:
                component.add(stack.pop())
            found.append(component)

    for name in graph:
        if name not in index:
            visit(name)
    return found


def test_cycles_are_found():
    assert {"a", "b"} in cycles({"a": {"b"}, "b": {"a"}, "c": {"a"}})


def test_the_root_has_four_modules_and_ten_packages_at_most():
    assert len(list(ROOT.glob("*.py"))) <= 4
    assert len([path for path in ROOT.iterdir() if (path / "__init__.py").exists()]) <= 10


def test_no_more_than_three_modules_import_one_another():
    assert [sorted(cycle) for cycle in cycles(imports()) if len(cycle) > 3] == []


def test_no_module_imports_the_root_of_the_package():
    inside = {name for name, targets in imports().items() if "raxss" in targets}
    assert inside == set()


def test_no_public_class_name_occurs_twice():
    homes = defaultdict(list)
    for name, path in modules().items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].append(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


@pytest.mark.parametrize("name", ["estimator.py", "config.py", "evidence", "recordings", "study"])
def test_moved_modules_left_no_file_behind(name):
    assert not (ROOT / name).exists()
