"""On a CUDA device: the same sample trains and predicts, and agrees with the CPU."""

import numpy as np
import pytest
import torch

from raxss import RAxSSClassifier
from raxss.data.datasets import load_sample

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]


@pytest.fixture(scope="module", params=["recommended", "paper"])
def model_and_sample(request):
    sample = load_sample()[::4]
    settings = {
        "window_length": 1024,
        "stride": 256,
        "max_epochs": 2,
        "random_state": 69421,
        "batch_size": 512,
    }
    return RAxSSClassifier.from_preset(request.param, **settings, device="cuda").fit(sample), sample


@pytest.mark.parametrize("space", ["signal", "features"])
def test_from_the_same_weights_cpu_and_gpu_agree(model_and_sample, space):
    model, sample = model_and_sample
    model.set_params(space=space, device="cuda")
    on_gpu = model.predict_proba(sample)
    on_cpu = model.set_params(device="cpu").predict_proba(sample)
    model.set_params(device="cuda", space="signal")
    difference = np.abs(on_gpu - on_cpu).max()
    print(f"largest difference of a series probability, {space} space: {difference:.2e}")
    assert difference <= 1e-3


def test_a_model_fitted_on_the_gpu_is_kept_and_read_on_the_cpu(model_and_sample, tmp_path):
    model, sample = model_and_sample
    loaded = RAxSSClassifier.from_pretrained(model.save_pretrained(tmp_path / "m"), device="cpu")
    np.testing.assert_allclose(loaded.predict_proba(sample), model.predict_proba(sample), atol=1e-3)


def test_the_same_seed_gives_the_same_bits_on_the_gpu(model_and_sample):
    model, sample = model_and_sample
    again = RAxSSClassifier(**model.get_params()).fit(sample)
    np.testing.assert_array_equal(again.predict_proba(sample), model.predict_proba(sample))
    for parameter, other in zip(again.backbone_.parameters(), model.backbone_.parameters(), strict=True):
        assert torch.equal(parameter, other)


def test_evidence_on_the_gpu_sums_to_the_score(model_and_sample):
    model, sample = model_and_sample
    evidence = model.explain(sample[0])
    columns = [f"contribution_{name}" for name in model.classes_]
    np.testing.assert_allclose(evidence.windows[columns].sum(), evidence.series_probability, atol=1e-12)
