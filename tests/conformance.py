"""Conformance suites for one registered object, as the recipes in CONTRIBUTING.md run them.

    check_conformance("weighting", "sharp") -> "64 passed", or an AssertionError with what failed

The suites are the test files that run over the registries. Their tests of a single name run in this process, so
that objects registered in it, in a doctest or a notebook, are tested too.
"""

import contextlib
import io
import sys
import tempfile
from pathlib import Path

import pytest

HERE = Path(__file__).parent
#: Kind -> its test files, and the table in the first of them that has a line for each name.
SUITES = {
    "backbone": (
        ("test_networks", "test_feature_heads", "test_batch_norm", "test_ensemble"),
        "PARAMETERS",
    ),
    "classifier": (("test_window_classifiers",), "OPTIONS"),
    "weighting": (("test_weightings",), "EXAMPLES"),
    "dataset": (("test_datasets_conformance",), "SMALL"),
    "format": (("test_formats",), "EXAMPLES"),
    "analysis": (("test_analyses",), "TINY"),
}
#: Tests of a shortcut that networks defined outside of the package do not get.
OF_THE_PACKAGE = "test_networks_of_the_package_need_not_be_tried"


def check_conformance(kind, name, line=None):
    """Run the suite of a kind of object over one registered name, and its controls where it is a weighting.

    ``line``: the entry of the table that the recipe names, for an object whose line is not in the test file.
    """
    files, table = SUITES[kind]
    suite = _Suite(name, None if line is None else (table, line))
    kept = {
        file: sys.modules.pop(file) for file in files if file in sys.modules
    }  # they have read the registry
    output = io.StringIO()
    try:
        with (
            tempfile.TemporaryDirectory() as scratch,
            contextlib.redirect_stdout(output),
            contextlib.redirect_stderr(output),
        ):
            pytest.main(
                [
                    *(str(HERE / f"{file}.py") for file in files),
                    *("-q", "-m", "not slow and not gpu", "-p", "no:cacheprovider", "-p", "no:faulthandler"),
                    *("-o", "addopts=", "-o", "timeout=0", "--capture=sys", f"--basetemp={scratch}/tests"),
                ],
                plugins=[suite],
            )
    finally:
        suite.forget()
        for file in files:
            sys.modules.pop(file, None)
        sys.modules.update(kept)
    assert suite.n_failed == 0, output.getvalue()
    assert suite.n_passed > 0, output.getvalue()
    return f"{suite.n_passed} passed"


class _Suite:
    """A pytest plugin: selects the tests of one name, adds its line to the table, and counts outcomes."""

    def __init__(self, name, line):
        self.name, self.line, self.added = name, line, []
        self.n_passed = self.n_failed = 0

    def pytest_collection_modifyitems(self, items):
        items[:] = [item for item in items if self.is_about(item)]
        if self.line is not None and items:
            table, line = self.line
            entries = getattr(items[0].module, table)
            if self.name not in entries:
                entries[self.name] = line
                self.added.append(entries)

    def is_about(self, item):
        if not hasattr(item, "callspec") or item.originalname == OF_THE_PACKAGE:
            return False
        values = item.callspec.params.values()
        own = (self.name, f"{self.name}-inverse", f"{self.name}-shuffled")
        return any(isinstance(value, str) and value in own for value in values)

    def pytest_collectreport(self, report):
        self.n_failed += report.failed

    def pytest_runtest_logreport(self, report):
        self.n_passed += report.passed and report.when == "call"
        self.n_failed += report.failed

    def forget(self):
        for entries in self.added:
            del entries[self.name]
