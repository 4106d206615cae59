"""`AutoRAxSS` and all checks of scikit-learn: some three hundred searches, a file of their own. `make test-slow`"""

import pytest
from sklearn.utils.estimator_checks import check_estimator

from raxss import AutoRAxSS

pytestmark = pytest.mark.slow


def test_it_passes_every_check_of_scikit_learn():
    checks = check_estimator(AutoRAxSS(n_trials=2, device="cpu"), on_skip=None)
    assert {check["status"] for check in checks} == {"passed"}
    assert len(checks) >= 50
