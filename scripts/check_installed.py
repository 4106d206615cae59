"""Check an installed raxss as a user has it: README as a doctest, scikit-learn's checks, no optional package.

python scripts/check_installed.py README.md        with the Python of the environment that has the wheel
"""

from __future__ import annotations

import doctest
import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # scikit-learn skips a check without it

OPTIONAL = ("mne", "wfdb", "ray", "aeon", "stumpy", "faiss", "pytest")


def main() -> int:
    """Run the checks; the exit code is 1 where one fails."""
    import raxss

    print(f"raxss {raxss.__version__} of {Path(raxss.__file__).parent}")
    assert Path(sys.prefix) in Path(raxss.__file__).parents, "raxss is not that of this environment"
    present = [name for name in OPTIONAL if importlib.util.find_spec(name)]
    assert not present, f"the environment is not without extras: {present}"
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    readme = doctest.testfile(str(Path(sys.argv[1]).resolve()), module_relative=False, optionflags=flags)
    print(f"README: {readme.attempted} examples, {readme.failed} failed")

    from sklearn.utils.estimator_checks import check_estimator

    checks = check_estimator(raxss.RAxSSClassifier(device="cpu"), on_fail=None, on_skip=None)
    failed = [
        check["check_name"] for check in checks if check["status"] != "passed"
    ]  # nor skipped, nor excused
    print(f"check_estimator: {len(checks)} checks, {len(failed)} not passed {failed}")
    return int(bool(readme.failed or failed or not readme.attempted or not checks))


if __name__ == "__main__":
    sys.exit(main())
