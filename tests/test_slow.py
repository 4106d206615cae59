"""What takes longer: the demo's own figure, kills at random moments, long recordings. `make test-slow`."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import safetensors
from sklearn.utils.estimator_checks import check_estimator

from memory import PEAK
from raxss import RAxSSClassifier

pytestmark = pytest.mark.slow


def run(*arguments):
    return subprocess.run(
        [sys.executable, "-m", "raxss", *map(str, arguments)], check=True, capture_output=True
    )


def test_the_defaults_pass_every_check_of_scikit_learn():
    checks = check_estimator(RAxSSClassifier(device="cpu"), on_skip=None)
    assert {check["status"] for check in checks} == {"passed"}


def test_the_demo_reaches_an_auc_of_95_hundredths_on_records_it_never_saw(tmp_path):
    run("demo", "--out", tmp_path / "demo", "--device", "cpu")
    metrics = json.loads((tmp_path / "demo" / "metrics.json").read_text())
    print("AUC", metrics["auc"], "uniform", metrics["uniform"]["auc"], "seconds", metrics["seconds"])
    assert metrics["seed"] == 69421
    assert metrics["preset"] == "recommended"
    assert metrics["auc"]["value"] >= 0.95
    assert metrics["uniform"]["auc"]["value"] >= 0.9


def test_a_run_killed_at_random_moments_ends_where_an_undisturbed_one_does(tmp_path):
    arguments = ["fit", "synthetic", "--window-length", "128", "--stride", "32", "--max-epochs", "8"]
    arguments += ["--preset", "paper", "--device", "cpu"]
    run(*arguments, "--out", tmp_path / "whole")
    model, checkpoint = tmp_path / "model", tmp_path / "model.checkpoint"
    moments = np.random.default_rng(69421).uniform(0.0, 4.0, size=12)
    n_kills = 0
    for moment in moments:
        command = [sys.executable, "-m", "raxss", *arguments, "--out", str(model), "--resume"]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            process.stderr.readline()  # the first words come when training begins
            time.sleep(moment)
            process.kill()
            n_kills += process.wait() == -signal.SIGKILL
        if model.exists():
            break  # it had finished before the kill
        if checkpoint.exists():
            with safetensors.safe_open(checkpoint, framework="pt") as file:
                assert json.loads(file.metadata()["progress"])["epoch"] >= 1
    if not model.exists():
        run(*arguments, "--out", model, "--resume")
    assert n_kills >= 3
    assert (model / "model.safetensors").read_bytes() == (
        tmp_path / "whole" / "model.safetensors"
    ).read_bytes()
    assert sorted(item.name for item in tmp_path.iterdir()) == ["model", "whole"]


def peak_memory(script, *arguments):
    """Largest resident memory of a fresh process that runs the script, in MB, and what it printed."""
    code = PEAK + textwrap.dedent(script) + "\nprint(peak())"
    environment = os.environ | {"RAXSS_CACHE": "off"}
    ended = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        check=True,
        capture_output=True,
        text=True,
        env=environment,
    )
    *printed, peak = ended.stdout.split("\n")[:-1]
    return int(peak) / 1024, printed


def test_retrieval_on_200_000_samples_stays_under_1_gb():
    peak, _ = peak_memory(
        """
        import numpy as np
        from raxss.method.retrieval import retrieve
        samples = np.random.default_rng(69421).normal(size=200_000).cumsum()
        found = retrieve(samples, window_length=1024, stride=5, n_neighbors=10)
        assert found.n_windows == 39_796
        """
    )
    print(f"peak {peak:.0f} MB")
    assert peak < 1000


def test_an_hour_of_signal_is_explained_in_bounded_memory(tmp_path):
    rng = np.random.default_rng(69421)
    series = [rng.normal(size=2000 + 10 * index) for index in range(12)]
    model = RAxSSClassifier(window_length=256, stride=64, max_epochs=1, random_state=0, device="cpu")
    model.fit(series, [0, 1] * 6).save_pretrained(tmp_path / "model")
    peak, printed = peak_memory(
        """
        import sys
        import numpy as np
        from raxss import RAxSSClassifier, Series
        model = RAxSSClassifier.from_pretrained(sys.argv[1], device="cpu")
        hour = Series(np.random.default_rng(1).normal(size=3600 * 500).astype(np.float32), rate=500.0, name="hour")
        evidence = model.explain(hour)
        print(len(evidence.windows), float(evidence.windows["weight"].sum()))
        """,
        tmp_path / "model",
    )
    n_windows, total = printed[0].split()
    assert int(n_windows) == (3600 * 500 - 256) // 64 + 1
    assert float(total) == pytest.approx(1)
    print(f"peak {peak:.0f} MB")
    assert peak < 2000
