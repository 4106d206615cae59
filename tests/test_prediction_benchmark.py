"""The benchmark of prediction on sizes of seconds: that it measures what it says."""

import json

import numpy as np
import pytest
from benchmarks.prediction import main, network_flops, pooled_samples, recording

from raxss import Series
from raxss.data.prepare.preprocessing import Preparation
from raxss.method.backbones import build_backbone


def test_the_operations_of_the_network_are_those_of_its_products():
    network = build_backbone("patchtst", n_variates=1, window_length=64, n_outputs=1, options={"n_layers": 1})
    n_tokens = 8
    linear = 16 * 32 + 4 * 32 * 32 + 2 * 32 * 128
    attention = 2 * n_tokens * 32
    assert network_flops(network) == 2 * (n_tokens * (linear + attention) + n_tokens * 32)


def test_pooling_leaves_as_many_samples_as_preparation_does():
    for seconds in (0.024, 1.0, 7.777):
        raw = Series(np.zeros(round(1000 * seconds)), rate=1000.0)
        assert pooled_samples(seconds) == Preparation(pooling=(24, 12)).apply(raw).n_samples


def test_a_recording_comes_back_with_its_parts():
    found = recording("cpu", n_channels=2, seconds=20.0, window_length=64, stride=16)
    assert found["n_windows"] == 2 * ((1665 - 64) // 16 + 1)
    assert {"read", "retrieval", "network", "evidence_and_write"} <= set(found["parts_by_themselves"])
    assert found["seconds"] > 0
    json.dumps(found)


@pytest.mark.parametrize("bank", ["local", "series"])
def test_a_long_channel_runs_from_the_command_line(tmp_path, bank):
    command = ["long", "--device", "cpu", "--hours", "0.05", "--bank", bank, "--bank-size", "100"]
    main([*command, "--json", str(tmp_path / "long.json")])
    found = json.loads((tmp_path / "long.json").read_text())["results"]
    assert found["n_windows"] == (14_999 - 1024) // 5 + 1
    assert (found["bank"], found["bank_windows"]) == (bank, 100 if bank == "local" else found["n_windows"])
    assert 0 < found["before_gb"] < found["peak_gb"] < 2
