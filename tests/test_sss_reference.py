"""The reference that training is compared with gives the numbers of raxss; and the benchmark around both."""

import json

import pytest
import torch
from benchmarks import sss_reference, training
from benchmarks.common import Disagreement

from raxss._core.atomic import json_ready
from raxss.method.backbones import build_backbone


@pytest.fixture(scope="module")
def both():
    """Our network and the reference with its weights, without dropout."""
    torch.manual_seed(3)
    ours = build_backbone(
        "patchtst",
        n_variates=1,
        window_length=1024,
        n_outputs=1,
        options={"dropout": 0.0, "attention_dropout": 0.0},
    )
    with torch.no_grad():
        for value in ours.parameters():  # what starts at 0 or 1 would hide that it was not copied
            value.add_(0.1 * torch.randn_like(value))
    reference = sss_reference.TextbookPatchTST(1024, dropout=0.0)
    sss_reference.copy_weights(ours, reference)
    return ours, reference


@pytest.mark.parametrize("mode", [True, False])
def test_from_equal_weights_both_networks_give_equal_logits(both, mode):
    ours, reference = both
    windows = torch.randn(6, 1, 1024, generator=torch.Generator().manual_seed(1)).cumsum(dim=2)
    with torch.no_grad():
        expected, found = ours.train(mode)(windows)[:, 0], reference.train(mode)(windows)
    assert expected.std() > 0.01
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


SMALL = {"batch": 32, "n_steps": 2, "n_rounds": 1, "n_series": 6, "window_length": 128}


def test_a_step_is_timed_for_every_contender_after_they_agreed():
    found = training.step_rate("cpu", **SMALL)
    assert set(found["windows_per_second"]) == {"raxss", "reference", "reference without its loader"}
    assert all(rate > 0 for rate in found["windows_per_second"].values())
    assert found["agreement"]["difference"] <= 1e-5
    assert found["agreement"]["parameters"][0] == found["agreement"]["parameters"][1]
    assert json.loads(json.dumps(json_ready(found))) == found
    assert "| raxss " in training.tell_step(found)


def test_contenders_that_disagree_are_not_timed(monkeypatch):
    right = sss_reference.series_loss
    monkeypatch.setattr(sss_reference, "series_loss", lambda *given: right(*given) + 0.01)
    with pytest.raises(Disagreement, match=r"the loss is 0\.\d+ .* the reference's 0\.\d+"):
        training.step_rate("cpu", **SMALL)


def test_one_seed_is_timed_by_parts_that_add_up():
    found = training.one_seed(
        "cpu", n_epochs=2, n_train=4, n_validation=2, window_length=64, stride=600, batch_size=32
    )
    assert found["settings"]["epochs"] == 2
    assert sum(found["seconds_by_part"].values()) == pytest.approx(found["seconds"], rel=1e-3)
    assert all(part > 0 for part in found["seconds_by_part"].values())
    lengths = training.recorded_lengths(4)
    assert found["settings"]["windows_an_epoch"] == sum((n - 64) // 600 + 1 for n in lengths)
    assert "| retrieval " in training.tell_seed(found)


def test_the_lengths_are_those_of_the_sidecars(shared_data):
    found = []
    for sidecar in (shared_data / "ds003029").rglob("*_ieeg.json"):
        facts = json.loads(sidecar.read_text())
        n_samples = round(facts["SamplingFrequency"] * facts["RecordingDuration"])
        found.append(f"{n_samples},{facts['ECOGChannelCount'] + facts['SEEGChannelCount']}")
    assert sorted(found) == sorted(training.LENGTHS.read_text().splitlines()[2:])


def test_an_epoch_of_one_seed_has_about_two_million_windows():
    n_windows = [((training.recorded_lengths(n) - 1024) // 5 + 1).sum() for n in (561, 80)]
    assert n_windows == [2_104_327, 299_774]


def test_the_command_writes_its_numbers_with_machine_and_date(tmp_path, capsys):
    file = tmp_path / "seed.json"
    small = ["--epochs", "1", "--series", "2", "--stride", "2000"]
    training.main(["seed", "--device", "cpu", *small, "--json", str(file)])
    record = json.loads(file.read_text())
    assert record["part"] == "seed"
    assert record["machine"]["cores"] >= 1
    assert "seconds" in capsys.readouterr().out
