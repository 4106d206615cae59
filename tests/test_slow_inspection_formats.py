"""Tens of thousands of damaged headers: what inspection accepts, mne and wfdb see alike."""

import pytest

from test_inspection_formats import compared_with_mne, compared_with_wfdb

pytestmark = pytest.mark.slow


def test_mne_sees_the_same_in_ten_thousand_mutants(tmp_path, rng):
    assert compared_with_mne(tmp_path, rng, 10_000, every=5) > 350


def test_wfdb_sees_the_same_in_twenty_thousand_mutants(tmp_path, rng):
    assert compared_with_wfdb(tmp_path, rng, 20_000, every=5) > 1000
