"""Measure the shape of the source tree: size, imports, names that occur twice, files that a call enters.

    python scripts/measure_tree.py [ROOT]        ROOT: a checkout, this one by default

How each figure is counted stands beside it in the output. Files entered are counted in a fresh process per call,
with compiled kernels in place, for the first call of its kind; a model is read from its folder before
`predict_proba` and `explain`. Pairs of near-equal places are not counted here: any clone detector does.
"""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from pathlib import Path

ENTERED = """
import json, sys, threading
from pathlib import Path
import raxss
from raxss import RAxSSClassifier
try:
    from raxss.data.datasets import load_synthetic
except ImportError:
    from raxss.datasets import load_synthetic
root, series, folder = str(Path(raxss.__file__).parent), load_synthetic(), Path(sys.argv[2])
model = RAxSSClassifier(window_length=128, stride=32, max_epochs=2, random_state=0)
if folder.exists() and sys.argv[1] != "fit":
    model = RAxSSClassifier.from_pretrained(folder)
call = {
    "fit": lambda: model.fit(series),
    "predict_proba": lambda: model.predict_proba(series[:3]),
    "explain": lambda: model.explain(series[0]),
}[sys.argv[1]]
seen = set()
def note(frame, event, argument):
    code = frame.f_code
    if event == "call" and code.co_filename.startswith(root) and code.co_name != "<module>":
        seen.add(code.co_filename[len(root) + 1:])
sys.setprofile(note)
threading.setprofile(note)
call()
sys.setprofile(None)
threading.setprofile(None)
if not folder.exists():
    model.save_pretrained(folder)
print(json.dumps(sorted(seen)))
"""

DIALECT = re.compile(r"^(told|said|asked)$")


def modules(package: Path) -> dict[str, Path]:
    """Dotted name -> path of every module."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imports(known: dict[str, Path]) -> dict[str, set[str]]:
    """Dotted name -> modules of the package that it imports, inside functions and for types as well."""
    graph = {}
    for name, path in known.items():
        targets = set()
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Import):
                targets |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                below = {f"{node.module}.{alias.name}" for alias in node.names}
                targets |= {item if item in known else str(node.module) for item in below}
        graph[name] = (targets & set(known)) - {name}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Sets of modules that reach one another (Tarjan's strongly connected components)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[set[str]] = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in graph[name]:
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            component: set[str] = set()
            while name not in component:
                component.add(stack.pop())
            found.append(component)

    for name in graph:
        if name not in index:
            visit(name)
    return found


def classes_twice(known: dict[str, Path]) -> list[str]:
    """Public class names that stand at the top of more than one module."""
    homes = defaultdict(set)
    for name, path in known.items():
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                homes[node.name].add(name)
    return sorted(name for name, found in homes.items() if len(found) > 1)


def bindings(folder: Path) -> Counter[str]:
    """How often each identifier is bound: assigned, looped over, an argument, or a name of a function or class."""
    counts: Counter[str] = Counter()
    for path in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                counts[node.id] += 1
            elif isinstance(node, ast.arg):
                counts[node.arg] += 1
            elif isinstance(node, ast.FunctionDef | ast.ClassDef):
                counts[node.name] += 1
    return counts


def lines(paths: list[Path]) -> tuple[int, int]:
    """Lines of these files, and how many of the files have more than 600."""
    counts = [len(path.read_text("utf-8").splitlines()) for path in paths]
    return sum(counts), sum(count > 600 for count in counts)


def entered(root: Path, call: str, folder: Path) -> list[str]:
    """Files of the package in which a function runs during a call."""
    environment = os.environ | {"PYTHONPATH": str(root / "src")}
    command = [sys.executable, "-W", "ignore", "-c", ENTERED, call, str(folder)]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    found: list[str] = json.loads(run.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Print one line a figure."""
    root = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).parents[1]).resolve()
    package = root / "src" / "raxss"
    known = modules(package)
    at_root = [p for p in package.iterdir() if (p / "__init__.py").exists() or p.suffix == ".py"]
    units = sorted(item.name for item in at_root if item.name not in ("__init__.py", "__main__.py"))
    contract = re.search(r"layers = \[(.*?)\n\]", (root / "pyproject.toml").read_text("utf-8"), re.DOTALL)
    source, tests = lines(list(known.values())), lines(list((root / "tests").rglob("*.py")))
    both = bindings(root / "src") + bindings(root / "tests")
    print(f"modules and packages at the root of the package: {len(units)} ({', '.join(units)})")
    print(f"lines of the import contract: {contract.group(1).count('raxss') if contract else 0}")
    print(
        f"modules in the largest import cycle, functions and types counted: {max(map(len, cycles(imports(known))))}"
    )
    print(f"public class names in two modules: {len(classes_twice(known))} {classes_twice(known)}")
    print(f"lines of source: {source[0]:,}; files over 600: {source[1]}")
    print(f"lines of tests: {tests[0]:,}; files over 600: {tests[1]}")
    dialect = sum(count for name, count in both.items() if DIALECT.match(name))
    print(f"bindings of told, said, asked in src and tests: {dialect}; of one: {both['one']}")
    print(f"files under results/: {sum(item.is_file() for item in (root / 'results').rglob('*'))}")
    with tempfile.TemporaryDirectory() as folder:
        entered(root, "fit", Path(folder) / "model")  # compiles kernels, writes the model
        for call in ("fit", "predict_proba", "explain"):
            found = entered(root, call, Path(folder) / "model")
            infrastructure = sum(item.startswith("_core") for item in found)
            print(f"files that {call} enters: {len(found)}, of them {infrastructure} of _core")


if __name__ == "__main__":
    main()
