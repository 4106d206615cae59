"""Modules are found under the names they had before they moved."""

import importlib
import subprocess
import sys
import warnings

import pytest

from raxss._core.old_paths import MOVED, new_path


@pytest.fixture
def no_old_names():
    """Forget old names before and after, so that each import is the first."""

    def forget():
        for name in [name for name in sys.modules if new_path(name) is not None]:
            del sys.modules[name]

    forget()
    yield
    forget()


@pytest.mark.parametrize("old", MOVED)
def test_an_old_path_is_the_new_module_and_says_where_it_is(old, no_old_names):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = importlib.import_module(old)
    new = importlib.import_module(MOVED[old])
    assert found is new
    assert new.__name__ == new.__spec__.name == MOVED[old]
    (warning,) = [item for item in caught if str(item.message).startswith(f"{old} is ")]
    assert warning.category is DeprecationWarning
    assert MOVED[old] in str(warning.message)


def test_modules_below_an_old_package_exist_once(no_old_names):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        from raxss.recordings.series import Series
    from raxss.data.series import Series as of_today

    assert Series is of_today
    assert any("raxss.recordings.series is raxss.data.series now" in str(item.message) for item in caught)


def test_what_never_was_is_not_found(no_old_names):
    with pytest.raises(ModuleNotFoundError, match=r"raxss\.nothing"):
        importlib.import_module("raxss.nothing")
    with (
        pytest.warns(DeprecationWarning, match=r"raxss\.data now"),
        pytest.raises(ModuleNotFoundError, match=r"raxss\.data\.nothing"),
    ):
        importlib.import_module("raxss.recordings.nothing")


def test_the_warning_points_at_the_line_of_the_user(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "import sys\nfrom raxss.datasets import load_synthetic\nprint(len(load_synthetic(2)))\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True)
    assert done.stdout == "2\n"
    assert "script.py:2: DeprecationWarning: raxss.datasets is raxss.data.datasets now" in done.stderr
