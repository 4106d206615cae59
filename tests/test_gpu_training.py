"""On a CUDA device: an epoch without a wait, the same bits again, and memory that is too small."""

import logging
from functools import partial

import numpy as np
import pytest
import torch
from benchmarks.training import step_rate
from torch import nn

from raxss import RAxSSClassifier, Series
from raxss._core.memory import available_bytes
from raxss.data.datasets import load_sample
from raxss.errors import TrainingError
from raxss.estimator.config import Config
from raxss.estimator.fit import epoch_refresh, show_windows, support_in_batch
from raxss.method.augmentation import AugmentationConfig
from raxss.method.backbones import BACKBONES, build_backbone
from raxss.method.feature_heads import FeatureHeads
from raxss.method.sampling import epoch_order
from raxss.method.training import step as stepping
from raxss.method.training import window_pool as pool_module
from raxss.method.training.feature_support import EpochRefresh
from raxss.method.training.loop import train, train_epoch, update_batch_norm, validate
from raxss.method.training.step import Learner, adam, autocast_type, reproducible, take_step
from raxss.method.training.step_memory import step_bytes
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import exact_arithmetic
from toys import Greedy, StopAfter, assert_same_bits, training_plan, waiting, weights_of

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine"),
]

LENGTH, STRIDE, DEVICE = 1024, 16, torch.device("cuda")
PAPER = {"window_loss_weight": 0.0, "series_loss_weight": 1.0, "lr": 3e-4, "warmup_steps": 2}
PRECISIONS = ["float32", "bfloat16"]


def pool_of(rng, n_series=24, device=DEVICE, n_variates=1, **options):
    """Slow against fast oscillations in noise, of differing lengths."""
    series = []
    for index in range(n_series):
        time = np.arange(rng.integers(2000, 3000))
        wave = np.sin(time * (0.05 + 0.2 * (index % 2)) + rng.uniform(0, 6))
        series.append(Series((wave + rng.normal(size=(n_variates, len(time)))).astype(np.float32)))
    counts = [(item.n_samples - LENGTH) // STRIDE + 1 for item in series]
    return WindowPool(
        series,
        np.arange(n_series) % 2,
        [rng.uniform(0.8, 1.0, size=count) for count in counts],
        [np.zeros(count, dtype=bool) for count in counts],
        window_length=LENGTH,
        stride=STRIDE,
        device=device,
        **options,
    )


def learner_of(backbone="patchtst", *, learned=False, device=DEVICE, heads=None, n_variates=1):
    torch.manual_seed(0)
    network = build_backbone(backbone, n_variates=n_variates, window_length=LENGTH, n_outputs=1)
    return Learner(network, temperature=0.1, learned=learned, heads=heads and heads()).to(device)


CHANGES = {"flip": 0.5, "reverse": 0.5, "gain": 0.2, "noise": 0.1, "stretch": 0.2, "mask": 0.3, "drop": 0.1}
EVERY_CHANGE = AugmentationConfig(**CHANGES, mirror=[0, 4, 5], rotate=0.25)
FEATURES = {"space": "features", "exclusion": 512, "n_neighbors": 5, "series_loss_weight": 1.0}
LEARNED_WEIGHTS = {
    "bank of the batch": {"bank": "batch", "series_loss_weight": 1.0},
    "support by epoch": FEATURES | {"refresh": "epoch"},
    "gate": FEATURES | {"refresh": "epoch", "weighting": "gated"},
    "projection": FEATURES | {"refresh": "batch", "projection": 8},
    "all": FEATURES | {"refresh": "batch", "projection": 8, "weighting": "gated"},
}
CAPTURABLE = sorted(
    {"ensemble"} | {name for name, made in BACKBONES.items() if getattr(made, "capturable", False)}
)
#: Networks whose steps are recorded, how their weights are learned, and augmentation.
CASES = [
    *((backbone, None, None) for backbone in CAPTURABLE),
    *(("convnet", kind, None) for kind in LEARNED_WEIGHTS),
    ("ensemble", "all", None),  # features of all members, and batches that leave some members untrained
    ("convnet", None, EVERY_CHANGE),
]
IDS = [f"{backbone}-{kind or 'plain'}{'-augmented' if changes else ''}" for backbone, kind, changes in CASES]


def made(backbone, kind, augmentation, on_host=False):
    """Pool and learner of a case, and its arguments of `train`."""
    n_variates, heads, options = 1 if augmentation is None else 6, None, {"augmentation": augmentation}
    if kind is not None:
        config = Config.from_parameters(LEARNED_WEIGHTS[kind])
        gated, projection = config.aggregation.weighting == "gated", config.retrieval.projection
        if config.learns_from_features:
            width = {"convnet": 256, "ensemble": 4 * 512}[backbone]
            heads = partial(FeatureHeads, width, projection=projection, gated=gated)
        options["batch_support"] = support_in_batch(config, LENGTH, n_series=24)
        options["refresh"] = epoch_refresh(config, LENGTH, seed=0)
    pool = pool_of(np.random.default_rng(5), n_variates=n_variates, on_host=on_host)
    learner = learner_of(backbone, learned=True, heads=heads, n_variates=n_variates)
    show_windows(learner.backbone, pool, seed=5)
    return pool, learner, options


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_no_step_waits_for_the_device(case, precision, on_host):
    """torch raises where a call would wait; the first step compiles kernels and is let off."""
    if on_host and case[1] is not None:
        pytest.skip("support within a batch is on the device")
    pool, learner, options = made(*case, on_host=on_host)
    refresh = options.pop("refresh", None)
    if refresh is not None:
        refresh(learner, pool, None, None)
    config = training_plan(batch_size=512, precision=precision, **PAPER)
    order = epoch_order(pool.n_windows, pool.n_samples, seed=1, epoch=0)
    n_steps, seen = stepping.steps_an_epoch(config, len(pool)), []
    assert n_steps >= 4

    def on_step(step):
        seen.append(step)
        torch.cuda.set_sync_debug_mode("error" if step < n_steps else "default")

    optimizer = adam(learner, config, DEVICE)
    autocast = autocast_type(config, DEVICE)
    step = partial(take_step, learner, pool, optimizer, config=config, autocast=autocast, **options)
    with reproducible(DEVICE), waiting("default"):
        loss = train_epoch(
            step, learner, pool, optimizer, config=config, order=order, first_step=0, on_step=on_step
        )
    assert seen == list(range(1, n_steps + 1))
    assert np.isfinite(loss)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("case", CASES, ids=IDS)
def test_replayed_steps_end_bit_for_bit_where_plain_steps_end(case, precision, monkeypatch):
    """Three epochs with dropout, a last batch of another size, a rate that changes, supports of every epoch."""
    settings = {"update_batch_norm": True, "validate_every": 2, "precision": precision, **PAPER}
    config = training_plan(batch_size=190, max_epochs=3, patience=0, **settings)
    ends, replays = [], []
    replay = torch.cuda.CUDAGraph.replay
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: (replays.append(1), replay(graph)))
    for n_plain in (stepping.STEPS_BEFORE_REPLAY, 10**9):
        monkeypatch.setattr(stepping, "STEPS_BEFORE_REPLAY", n_plain)
        pool, learner, options = made(*case)
        trained = train(learner, pool, None, config=config, seed=5, fingerprint="toy", **options)
        ends.append((weights_of(learner), [row["train_loss"] for row in trained.history]))
    assert_same_bits(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]
    assert np.isfinite(ends[0][1]).all()
    assert len(pool) % 190 > 0
    assert len(replays) > 3 * (len(pool) // 190) - 10  # all but the first steps were replayed


@pytest.mark.parametrize("precision", PRECISIONS)
def test_replayed_steps_with_class_weights_end_bit_for_bit_where_plain_steps_end(precision, monkeypatch):
    """Both losses are weighted, on the device, without a wait."""
    losses = {"window_loss_weight": 0.5, "series_loss_weight": 1.0}
    config = training_plan(batch_size=190, max_epochs=2, patience=0, precision=precision, **PAPER | losses)
    ends = []
    for n_plain in (stepping.STEPS_BEFORE_REPLAY, 10**9):
        monkeypatch.setattr(stepping, "STEPS_BEFORE_REPLAY", n_plain)
        pool, learner, options = made("convnet", None, None)
        options["class_weights"] = np.array([0.5, 1.5])
        trained = train(learner, pool, pool, config=config, seed=5, fingerprint="toy", **options)
        ends.append((weights_of(learner), [row["train_loss"] for row in trained.history]))
    assert_same_bits(ends[0][0], ends[1][0])
    assert ends[0][1] == ends[1][1]
    assert "validation_weighted_accuracy" in trained.history[-1]


def test_a_step_that_cannot_be_recorded_is_warned_of_and_ends_bit_for_bit_where_plain_steps_end(rng, caplog):
    pool, config = pool_of(rng), training_plan(batch_size=192, max_epochs=2, patience=0, **PAPER)
    ends, stream = [], torch.cuda.current_stream()
    for capturable in (True, False):
        learner = learner_of()
        # It synchronises with the device, which a recording does not allow.
        learner.backbone.register_forward_pre_hook(lambda network, given: float(given[0].sum()) and None)
        learner.backbone.capturable = capturable
        with caplog.at_level(logging.WARNING, logger="raxss"):
            train(learner, pool, None, config=config, seed=5, fingerprint="toy")
        ends.append(weights_of(learner))
    assert_same_bits(*ends)  # dropout too: the generator is not left in the middle of a recording
    assert torch.cuda.current_stream() == stream
    assert [record.getMessage().split(" (")[0] for record in caplog.records] == ["a step cannot be recorded"]


@pytest.mark.parametrize("n_windows", [1, 3, 4, 7])
def test_an_ensemble_takes_steps_of_fewer_windows_than_it_has_members(rng, n_windows):
    pool, learner = pool_of(rng, n_series=4), learner_of("ensemble").train()
    config = training_plan(batch_size=n_windows, **PAPER)
    optimizer, before = adam(learner, config, DEVICE), weights_of(learner)
    with reproducible(DEVICE):
        loss = take_step(learner, pool, optimizer, torch.arange(n_windows, device=DEVICE), config=config)
    after = weights_of(learner)
    assert loss.isfinite()
    for k in range(4):
        head = f"backbone.members.{k}.head.weight"
        assert torch.equal(before[head], after[head]) == (k >= n_windows)


@pytest.mark.parametrize("backbone", ["multiview", "ensemble"])
def test_thresholds_found_on_the_gpu_are_those_of_the_cpu(backbone):
    """Up to places that lie at a threshold, which may count on one of them only."""
    networks, windows = [], None
    for device in (DEVICE, torch.device("cpu")):
        pool = pool_of(np.random.default_rng(5), n_series=6, device=device)
        learner = learner_of(backbone, device=device)
        show_windows(learner.backbone, pool, seed=3)
        networks.append(learner.backbone.eval())
        windows = pool.gather(torch.arange(0, len(pool), 8, device=device)).cpu()
    here, there = (dict(network.named_buffers()) for network in networks)
    for name in there:
        if name.endswith("cuts"):
            assert torch.equal(here[name].cpu()[::2], there[name][::2])  # of the windows as they are
            torch.testing.assert_close(here[name].cpu(), there[name], atol=1e-4, rtol=1e-4)  # of derivatives
        if name.endswith(("textures.mean", "textures.deviation")):
            torch.testing.assert_close(here[name].cpu(), there[name], atol=1e-4, rtol=1e-3)
    with torch.inference_mode(), exact_arithmetic():
        on_gpu, moved = networks[0](windows.to(DEVICE)).cpu(), networks[0].cpu()(windows)
    torch.testing.assert_close(on_gpu.sigmoid(), moved.sigmoid(), atol=1e-3, rtol=0)


def test_a_recorded_step_draws_anew_each_time_it_is_replayed(rng):
    """The same windows and, at a rate of 0, the same weights: what differs is what was drawn."""
    pool, learner = pool_of(rng, n_variates=6), learner_of("dlinear", n_variates=6).train()
    config = training_plan(batch_size=192, lr=0.0, weight_decay=0.0, series_loss_weight=1.0)
    indices, losses = torch.arange(192, device=DEVICE), {}
    for augmentation in (None, EVERY_CHANGE):
        optimizer = adam(learner, config, DEVICE)
        step = stepping.step_for(learner, pool, optimizer, config=config, augmentation=augmentation)
        assert isinstance(step, stepping.ReplayedStep)
        with reproducible(DEVICE):
            losses[augmentation] = [float(step(indices)) for _ in range(stepping.STEPS_BEFORE_REPLAY + 8)]
        assert step._graph is not None
    assert len(set(losses[None])) == 1
    assert len(set(losses[EVERY_CHANGE])) == stepping.STEPS_BEFORE_REPLAY + 8
    assert np.isfinite(losses[EVERY_CHANGE]).all()


@pytest.mark.parametrize("on_host", [False, True])
def test_supports_are_refreshed_wherever_the_pool_lies(on_host):
    refresh = EpochRefresh(
        n_neighbors=5, exclusion=512, weighting="support", of_training=True, of_validation=True, seed=0
    )
    found = []
    for device, there in ((DEVICE, on_host), (torch.device("cpu"), False)):
        pool = pool_of(np.random.default_rng(5), n_series=4, device=device, on_host=there)
        refresh(learner_of("convnet", device=device), pool, None, None)
        found.append(pool.influence.cpu())
    torch.testing.assert_close(found[0], found[1], atol=1e-3, rtol=0)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("backbone", ["gru", "lstm", "timesnet"])
def test_a_step_of_networks_that_are_not_recorded_is_finite_and_the_same_bits_twice(rng, backbone, precision):
    pool, config = pool_of(rng), training_plan(batch_size=192, precision=precision, **PAPER)
    indices, ends = torch.arange(192, device=DEVICE), []
    for _ in range(2):
        learner = learner_of(backbone, learned=True)
        assert not getattr(learner.backbone, "capturable", False)
        learner.train()
        optimizer, before = adam(learner, config, DEVICE), weights_of(learner)
        torch.manual_seed(7)  # of dropout
        with reproducible(DEVICE):
            loss = take_step(
                learner, pool, optimizer, indices, config=config, autocast=autocast_type(config, DEVICE)
            )
        gradients = {name: named_parameter.grad.cpu() for name, named_parameter in learner.named_parameters()}
        after = {f"new {name}": value for name, value in weights_of(learner).items()}
        assert not torch.equal(before["backbone.head.weight"], after["new backbone.head.weight"])
        ends.append({"loss": loss.cpu(), **gradients, **after})
        assert all(end.isfinite().all() for end in ends[-1].values())
    assert_same_bits(*ends)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_killed_and_resumed_ends_bit_for_bit_where_it_would_have(rng, tmp_path, precision):
    pools = pool_of(rng), pool_of(rng, n_series=8)
    config = training_plan(batch_size=512, max_epochs=3, patience=0, precision=precision, **PAPER)
    arguments = {"config": config, "seed": 3, "fingerprint": "toy"}
    runs = []
    for _ in range(2):
        whole = learner_of(learned=True)
        runs.append((train(whole, *pools, **arguments), weights_of(whole)))
    assert_same_bits(runs[0][1], runs[1][1])

    path = tmp_path / "run.checkpoint"
    for stop in (1, 2):
        options = {"checkpoint": path, "resume": True, "callbacks": [StopAfter(stop)]}
        with pytest.raises(SystemExit):
            train(learner_of(learned=True), *pools, **options, **arguments)
    resumed = learner_of("patchtst", learned=True)
    found = train(resumed, *pools, checkpoint=path, resume=True, **arguments)
    assert_same_bits(weights_of(resumed), runs[0][1])
    for item, other in zip(found.history, runs[0][0].history, strict=True):
        assert {**item, "seconds": 0} == {**other, "seconds": 0}


def test_a_pool_in_the_hosts_memory_trains_the_same_bits(rng):
    config = training_plan(batch_size=512, max_epochs=2, **PAPER)
    results = []
    for on_host in (False, True):
        generator = np.random.default_rng(5)
        pool, held = pool_of(generator, on_host=on_host), pool_of(generator, n_series=6, on_host=on_host)
        assert pool.strip.device.type == ("cpu" if on_host else "cuda")
        learner = learner_of()
        history = train(learner, pool, held, config=config, seed=1, fingerprint="toy").history
        results.append((weights_of(learner), [row["validation_loss"] for row in history]))
    assert_same_bits(results[0][0], results[1][0])
    assert results[0][1] == pytest.approx(results[1][1], abs=1e-6)  # summed on the host there


def test_a_pool_that_does_not_fit_stays_on_the_host_with_a_warning(rng, monkeypatch, caplog):
    monkeypatch.setattr(pool_module, "available_bytes", lambda device: 500_000)
    with caplog.at_level(logging.WARNING, logger="raxss"):
        pool = pool_of(rng)
    needed = 4 * pool.strip.numel() + pool_module.BYTES_A_WINDOW * len(pool)
    assert pool.on_host
    assert f"need {needed / 1e6:.1f} MB of memory and cuda has 0.5 MB free" in caplog.text
    assert pool.take(torch.tensor([3, 1])).windows.device.type == "cuda"


@pytest.mark.parametrize("precision", PRECISIONS)
def test_validation_in_training_precision_is_near_the_exact_one(rng, precision):
    pool, learner = pool_of(rng), learner_of()
    config = training_plan(batch_size=512, max_epochs=2, precision=precision, **PAPER)
    train(learner, pool, None, config=config, seed=1, fingerprint="toy")
    exact = validate(learner, pool)
    mixed = validate(learner, pool, autocast=autocast_type(config, DEVICE))
    assert mixed["validation_loss"] == pytest.approx(exact["validation_loss"], abs=1e-2)


@pytest.mark.parametrize("augmentation", [None, EVERY_CHANGE])
@pytest.mark.parametrize("precision", PRECISIONS)
def test_a_step_takes_at_least_the_estimated_memory_and_not_much_more(rng, precision, augmentation):
    n_variates = 1 if augmentation is None else 6
    pool, learner, batch = pool_of(rng, n_variates=n_variates), learner_of(n_variates=n_variates), 1024
    config = training_plan(batch_size=batch, precision=precision, **PAPER)
    autocast = autocast_type(config, DEVICE)
    estimate = step_bytes(learner.backbone, pool, batch, augmentation=augmentation, autocast=autocast)
    optimizer = adam(learner, config, DEVICE)
    step = partial(
        take_step, learner, pool, optimizer, config=config, augmentation=augmentation, autocast=autocast
    )
    order = np.arange(2 * batch) % len(pool)
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    train_epoch(step, learner, pool, optimizer, config=config, order=order, first_step=0)
    peak = torch.cuda.max_memory_allocated() - before
    assert estimate <= peak <= 3 * estimate


def test_a_gpu_whose_memory_ends_in_a_step_is_an_error_with_the_batch_size(rng):
    learner = Learner(Greedy(LENGTH), temperature=0.1, learned=False).to(DEVICE)
    config = training_plan(batch_size=48)
    with pytest.raises(TrainingError, match=r"(?s)memory of cuda .* batch_size=48 .*batch_size to 16"):
        train(learner, pool_of(rng), None, config=config, seed=1, fingerprint="toy")


def test_free_memory_shrinks_by_what_is_taken_and_counts_what_torch_keeps():
    before = available_bytes(DEVICE)
    taken = torch.empty(2**30, dtype=torch.uint8, device=DEVICE)
    assert before - available_bytes(DEVICE) == pytest.approx(2**30, rel=0.1)
    del taken
    assert available_bytes(DEVICE) == pytest.approx(before, abs=2**27)


def test_the_benchmark_of_a_step_agrees_with_its_reference():
    found = step_rate("cuda", batch=256, n_steps=4, n_reference_steps=1, n_rounds=1, n_series=40)
    assert found["agreement"]["difference"] <= 1e-4
    assert all(rate > 0 for rate in found["windows_per_second"].values())


@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("backbone", ["convnet-fine", "multiview"])
def test_batch_norm_statistics_are_those_of_the_cpu(backbone, on_host, monkeypatch):
    at_once = pool_module.SAMPLES_A_PASS  # the same batches on both
    monkeypatch.setitem(at_once, "cpu", at_once["cuda"])
    found = []
    for device, options in ((DEVICE, {"on_host": on_host}), (torch.device("cpu"), {})):
        pool = pool_of(np.random.default_rng(5), n_series=6, device=device, **options)
        network = learner_of(backbone, device=device).backbone
        for layer in network.modules():
            if isinstance(layer, nn.Dropout):
                layer.p = 0.0
        with reproducible(device), exact_arithmetic():
            update_batch_norm(network, pool, seed=3)
        found.append({name: value.cpu() for name, value in network.named_buffers() if "running" in name})
    assert found[0].keys() == found[1].keys()
    assert found[0]
    for name, value in found[0].items():
        torch.testing.assert_close(value, found[1][name], rtol=2e-3, atol=2e-4, msg=name)


# The estimator on the embedded sample


@pytest.fixture(scope="module", params=["tuned", "paper"])
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
    assert np.abs(on_gpu - on_cpu).max() <= 1e-3


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
