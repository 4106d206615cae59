"""Shared fixtures: a seeded generator, a cache folder of its own, a model with every part, a browser."""

import copy
import importlib.util
import os
from pathlib import Path

os.environ.setdefault("SCIPY_ARRAY_API", "1")  # before scipy is imported, or scikit-learn skips a check

import numpy as np
import pytest
from hypothesis import settings

from raxss._core.kernel_cache import kernel_folder

settings.register_profile("raxss", derandomize=True, deadline=None)
settings.load_profile("raxss")


def pytest_runtest_setup(item):
    """Tests marked gpu skip without a device; torch is imported for them alone."""
    if item.get_closest_marker("gpu") is not None:
        import torch

        if not torch.cuda.is_available():
            pytest.skip("no CUDA device on this machine")


@pytest.fixture
def rng():
    return np.random.default_rng(69421)


@pytest.fixture(autouse=True, scope="session")
def _cache_of_its_own(tmp_path_factory):
    """Retrieval results never land in, or come from, the cache folder of whoever runs the tests.

    Compiled kernels do: they are named after all that decides them, and take minutes to compile.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAXSS_COMPILED", str(kernel_folder() or "off"))
        patch.setenv("RAXSS_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def shared_data():
    """Real recordings beside the repository; tests of them skip only where that folder is absent."""
    folder = Path(__file__).parents[2] / "shared" / "data"
    if not folder.is_dir():
        pytest.skip(
            f"real recordings are not in {folder}: put archives there as published (`raxss datasets` lists their "
            f"sources), or fetch ds003029 with `raxss datasets download ds003029 --root {folder}`"
        )
    return folder


@pytest.fixture(scope="session")
def _fitted_on_waves():
    from raxss import RAxSSClassifier
    from toys import SMALL, waves

    series = waves(np.random.default_rng(69421), n_series=24)
    return RAxSSClassifier(**{**SMALL, "max_epochs": 8, "batch_size": 32}).fit(series), series


@pytest.fixture
def waves_model(_fitted_on_waves):
    """A model of slow and fast waves whose settings a test may change, and its 24 training series."""
    model, series = _fitted_on_waves
    return copy.copy(model), series


@pytest.fixture(scope="session")
def full_series():
    from toys import waves

    return waves(np.random.default_rng(17), n_series=36)


@pytest.fixture(scope="session")
def full_model(full_series):
    """A small model with everything that a folder can hold: gate, calibration, validation report, threshold, ..."""
    from raxss import RAxSSClassifier
    from toys import SMALL

    settings = {"space": "features", "refresh": "batch", "projection": 3, "weighting": "gated"}
    settings |= {"calibration": "isotonic", "validation_fraction": 0.4, "series_loss_weight": 1.0}
    settings |= {"class_weight": {"slow": 1, "fast": 2.5}, "decision_threshold": "tuned"}
    return RAxSSClassifier("convnet", **SMALL, backbone_options={"width": 1}, **settings).fit(full_series)


@pytest.fixture(scope="session")
def full_folder(full_model, tmp_path_factory):
    return full_model.save_pretrained(tmp_path_factory.mktemp("original") / "model")


@pytest.fixture(scope="module")
def browser():
    """Headless Chromium for the page of a report; see pages.py."""
    from pages import CHROMIUM, Browser, needed

    needed("chromium", CHROMIUM)
    needed("playwright", importlib.util.find_spec("playwright"))
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        chromium = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield Browser(chromium)
        chromium.close()


@pytest.fixture(scope="module")
def night():
    """The evidence of a recording of ten contacts."""
    from pages import CONTACTS, recording

    return recording(CONTACTS, label="other")


@pytest.fixture
def show(browser, tmp_path):
    """Open evidence or a report in the browser; each page must have logged and requested nothing in the end."""
    from pages import assert_quiet, opened

    pages = []

    def open_page(what, **options):
        pages.append(opened(browser, tmp_path, what, **options))
        return pages[-1]

    yield open_page
    for page in pages:
        assert_quiet(page)
        page.close()


@pytest.fixture
def page(show, night):
    """The report of `night` in the browser."""
    from pages import FACTS

    return show(night, model=FACTS)
