"""Training: Alg. 1, its loss, schedule, early stopping, resuming, and the memory of a step."""

import logging
import math

import numpy as np
import pytest
import torch
from torch import nn

import naive
from raxss import Series
from raxss._core import memory
from raxss.errors import DataError, TrainingError
from raxss.method.augmentation import AugmentationConfig
from raxss.method.backbones import build_backbone
from raxss.method.sampling import epoch_order
from raxss.method.training import step_memory
from raxss.method.training import window_pool as pool_module
from raxss.method.training.checkpoints import state_of
from raxss.method.training.feature_support import feature_moments
from raxss.method.training.loop import fit_temperature, train, train_epoch
from raxss.method.training.step import Learner, autocast_type, batch_loss, learning_rate, step_for
from raxss.method.training.step_memory import check_step_memory, step_bytes
from raxss.method.training.window_pool import WindowPool
from toys import Greedy, assert_same_bits, training_plan, weights_of

LENGTH, STRIDE = 16, 4
KINDS = {"flip": 0.5, "reverse": 0.5, "gain": 0.3, "noise": 0.1, "stretch": 0.3, "mask": 0.4, "drop": 0.3}
AUGMENTATION = AugmentationConfig(**KINDS, mirror=[0])  # of one variate, so that there is none to rotate
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


def toy_series(rng, n_series=12, n_variates=1):
    """Slow against fast oscillations, of differing lengths."""
    targets = np.arange(n_series) % 2
    series = []
    for index, target in enumerate(targets):
        time = np.arange(rng.integers(40, 120))
        wave = np.sin(time * (0.2 + 0.6 * target) + rng.uniform(0, 6, size=(n_variates, 1)))
        series.append(Series(wave + 0.3 * rng.normal(size=wave.shape), name=f"toy {index}"))
    return series, targets


def toy_pool(rng, device="cpu", **options):
    series, targets = toy_series(rng, **options)
    counts = [(item.n_samples - LENGTH) // STRIDE + 1 for item in series]
    influence = [rng.uniform(size=count) for count in counts]
    flat = [np.zeros(count, dtype=bool) for count in counts]
    return WindowPool(
        series, targets, influence, flat, window_length=LENGTH, stride=STRIDE, device=torch.device(device)
    )


def toy_learner(seed=0, *, learned=False, device="cpu"):
    torch.manual_seed(seed)
    network = nn.Sequential(
        nn.Conv1d(1, 8, 5), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Flatten(), nn.Linear(96, 1)
    )
    return Learner(network, temperature=0.1, learned=learned).to(device)


class Watcher:
    """A callback that records its calls, and may stop the run."""

    def __init__(self, *, stop_after_epoch=None, error=KeyboardInterrupt, stop_at_step=None):
        self.records, self.ended, self.steps = [], False, 0
        self.stop_after_epoch, self.error, self.stop_at_step = stop_after_epoch, error, stop_at_step

    def on_train_begin(self, n_epochs, n_steps):
        self.plan = n_epochs, n_steps

    def on_step(self, epoch, step):
        self.steps += 1
        if self.stop_at_step == (epoch, step):
            raise self.error

    def on_epoch_end(self, record):
        self.records.append(record)
        if record["epoch"] == self.stop_after_epoch:
            raise self.error

    def on_train_end(self):
        self.ended = True


OWN = ("checkpoint", "resume", "callbacks", "augmentation")  # arguments of `train`, not settings


def run(learner, pool, validation=None, *, seed=1, fingerprint="toy", config=None, **settings):
    """`train`; settings are those of `training_plan`, unless `train` takes them itself."""
    options = {name: settings.pop(name) for name in OWN if name in settings}
    config = config or training_plan(**{"batch_size": 32} | settings)
    return train(learner, pool, validation, config=config, seed=seed, fingerprint=fingerprint, **options)


def test_gathered_windows_are_those_of_the_series(rng):
    pool = toy_pool(rng)
    series, _ = toy_series(np.random.default_rng(69421))
    gathered = pool.gather(torch.arange(len(pool)))
    expected = [
        item.samples[:, s : s + LENGTH]
        for item in series
        for s in range(0, item.n_samples - LENGTH + 1, STRIDE)
    ]
    np.testing.assert_array_equal(gathered.numpy(), np.stack(expected).astype(np.float32))


def test_windows_that_touch_gaps_are_left_out_of_the_pool():
    series = Series(np.r_[np.zeros(8), np.nan, np.ones(11)], gaps_marked=True)
    influence = np.array([0.5, np.nan, np.nan, 0.5])
    flat, cpu = np.zeros(4, bool), torch.device("cpu")
    pool = WindowPool([series], np.array([0]), [influence], [flat], window_length=8, stride=4, device=cpu)
    assert pool.starts.tolist() == [0, 12]
    assert torch.isfinite(pool.gather(torch.arange(2))).all()


@pytest.mark.parametrize(("n_outputs", "n_classes"), [(1, 2), (3, 3)])
@pytest.mark.parametrize(("window", "series"), [(0.3, 0.7), (0.0, 1.0)])
def test_the_batch_loss_is_the_plain_loop_over_series(rng, n_outputs, n_classes, window, series):
    logits = torch.tensor(rng.normal(size=(30, n_outputs)))
    support, owner = torch.tensor(rng.uniform(size=30)), torch.tensor(rng.integers(0, 4, size=30))
    targets = torch.tensor([0, 1, n_classes - 1, 0, 1])  # series 4 is not in the batch
    loss = batch_loss(
        logits, support, owner, targets,
        temperature=torch.tensor(0.2), window_loss_weight=window, series_loss_weight=series,
    )  # fmt: skip
    both = torch.cat([torch.zeros_like(logits), logits], dim=1) if n_outputs == 1 else logits
    posteriors = torch.softmax(both, dim=1).numpy()
    series_losses, window_losses = [], []
    for index in range(4):
        mask = owner.numpy() == index
        weights = naive.window_weights(support.numpy()[mask], 0.2)
        series_losses.append(-math.log(naive.series_probability(weights, posteriors[mask])[targets[index]]))
        window_losses.extend(-np.log(posteriors[mask, targets[index]]))
    expected = series * np.mean(series_losses) + window * np.mean(window_losses)
    assert float(loss) == pytest.approx(expected, abs=1e-6)


def test_the_schedule_warms_up_falls_as_a_cosine_and_stays_at_the_final_rate():
    config = training_plan(lr=3e-4, warmup_steps=100, schedule_steps=700, final_lr=1e-6, start_lr=1e-5)
    rates = [learning_rate(config, step, 8192) for step in range(2000)]
    assert rates[0] == 1e-5
    assert rates[100] == max(rates) == 3e-4
    assert all(np.diff(rates[:101]) > 0)
    assert all(np.diff(rates[100:701]) < 0)
    assert rates[400] == pytest.approx((3e-4 + 1e-6) / 2)
    assert set(rates[700:]) == {1e-6}
    config = training_plan(batch_size=10, max_epochs=4, warmup_steps=2, schedule_steps=0)  # to the last epoch
    assert learning_rate(config, 4 * 3, 25) == config.final_lr < learning_rate(config, 4 * 3 - 1, 25)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "settings",
    [
        {"series_loss_weight": 0.0},
        {"series_loss_weight": 1.0},
        {"validate_every": 2, "chooses_epoch": False, "update_batch_norm": True},
        {"augmentation": AUGMENTATION},
    ],
)
def test_a_run_that_was_killed_and_resumed_ends_bit_for_bit_where_it_would_have(
    rng, tmp_path, device, settings
):
    pools = toy_pool(rng, device), toy_pool(rng, device)
    arguments = {"max_epochs": 6, "lr": 1e-2, "patience": 0, "seed": 3, **settings}
    whole = toy_learner(learned=True, device=device)
    expected = run(whole, *pools, **arguments)

    path = tmp_path / "run.checkpoint"
    for stop in (1, 2, 3, 5):
        callbacks, learner = (
            [Watcher(stop_after_epoch=stop, error=SystemExit)],
            toy_learner(learned=True, device=device),
        )
        with pytest.raises(SystemExit):
            run(learner, *pools, checkpoint=path, resume=True, callbacks=callbacks, **arguments)
    resumed = toy_learner(seed=99, learned=True, device=device)  # its own weights must not matter
    found = run(resumed, *pools, checkpoint=path, resume=True, **arguments)
    assert_same_bits(weights_of(whole), weights_of(resumed))
    assert found.best_epoch == expected.best_epoch
    for item, other in zip(found.history, expected.history, strict=True):
        assert {**item, "seconds": 0} == {**other, "seconds": 0}


@pytest.mark.parametrize("device", DEVICES)
def test_the_same_seed_gives_the_same_weights_and_another_gives_others(rng, device):
    pool, results = toy_pool(rng, device), []
    for seed in (1, 1, 2):
        learner = toy_learner(device=device)
        run(learner, pool, seed=seed, max_epochs=2, series_loss_weight=1.0)
        results.append(weights_of(learner))
    assert_same_bits(results[0], results[1])
    assert not torch.equal(results[0]["backbone.0.weight"], results[2]["backbone.0.weight"])


def test_training_leaves_the_global_generator_alone(rng):
    pool, learner = toy_pool(rng), toy_learner()
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    run(learner, pool, max_epochs=1)
    assert torch.equal(torch.rand(3), expected)


def test_ctrl_c_keeps_the_best_model_so_far(rng, caplog):
    watcher, settings = Watcher(stop_at_step=(2, 1)), {"max_epochs": 9, "patience": 0}
    learner, reference = toy_learner(), toy_learner()
    with caplog.at_level(logging.WARNING, logger="raxss"):
        trained = run(learner, toy_pool(rng), toy_pool(rng), callbacks=[watcher], **settings)
    assert trained.interrupted
    assert len(trained.history) == 2
    assert watcher.ended
    assert "interrupted after epoch 2" in caplog.text
    stopped = Watcher(stop_after_epoch=trained.best_epoch)
    run(reference, toy_pool(np.random.default_rng(69421)), callbacks=[stopped], **settings)
    assert_same_bits(weights_of(learner), weights_of(reference))


def test_ctrl_c_in_the_first_epoch_has_nothing_to_keep(rng):
    watcher = Watcher(stop_at_step=(0, 1))
    with pytest.raises(KeyboardInterrupt):
        run(toy_learner(), toy_pool(rng), callbacks=[watcher])
    assert watcher.ended


def test_training_stops_when_validation_does_not_improve(rng):
    learner, rates = toy_learner(), {"lr": 0.0, "start_lr": 0.0, "final_lr": 0.0}
    learner.backbone[1].momentum = 0.0  # running statistics would move the validation loss
    trained = run(learner, toy_pool(rng), toy_pool(rng), max_epochs=50, patience=3, **rates)
    assert (trained.best_epoch, len(trained.history)) == (1, 4)


@pytest.mark.parametrize(
    ("settings", "scored"),
    [({}, [*range(1, 9)]), ({"validate_every": 3}, [3, 6, 8]), ({"chooses_epoch": False}, [*range(1, 9)])],
)
def test_the_best_epoch_is_by_accuracy_then_loss_among_those_scored_or_else_the_last(rng, settings, scored):
    settings = {"max_epochs": 8, "lr": 1e-2, "patience": 0, **settings}
    trained = run(toy_learner(), toy_pool(rng), toy_pool(rng), **settings)
    rows = [row for row in trained.history if "validation_accuracy" in row]
    assert [row["epoch"] for row in rows] == scored
    best = max(rows, key=lambda row: (row["validation_accuracy"], -row["validation_loss"]))
    assert trained.best_epoch == (best["epoch"] if settings.get("chooses_epoch", True) else 8)


def test_training_ends_below_the_stop_loss(rng):
    settings = {"max_epochs": 40, "lr": 1e-2, "warmup_steps": 5, "patience": 0, "validate_every": 100}
    learner, pool = toy_learner(), toy_pool(rng)
    trained = run(learner, pool, pool, stop_loss=0.3, **settings)
    losses = [row["train_loss"] for row in trained.history]
    assert len(losses) < 40
    assert losses[-1] < 0.3 <= min(losses[:-1])
    assert trained.best_epoch == len(losses)  # scored although its turn had not come


@pytest.mark.parametrize(
    ("series_loss_weight", "equal", "moves"),
    [
        (1.0, False, True),
        (0.0, False, False),
        (1.0, True, False),
    ],  # no gradient reaches tau: no decay does either
)
def test_the_learned_temperature_moves_with_the_series_loss_only(rng, series_loss_weight, equal, moves):
    pool, learner = toy_pool(rng), toy_learner(learned=True)
    if equal:
        pool.influence = torch.zeros_like(pool.influence)
    run(learner, pool, max_epochs=3, lr=1e-2, series_loss_weight=series_loss_weight, weight_decay=0.1)
    assert (abs(learner.temperature.item() - 0.1) > 1e-4) is moves


def test_the_fitted_temperature_beats_a_grid_of_others(rng):
    targets = np.arange(8) % 2
    posteriors = [rng.dirichlet([1, 1], size=rng.integers(5, 20)) for _ in targets]
    # windows with much influence are right, so a small temperature pays
    influence = [posterior[:, target] for posterior, target in zip(posteriors, targets, strict=True)]
    found = fit_temperature([torch.from_numpy(posterior) for posterior in posteriors], influence, targets)

    def loss(temperature):
        total = 0.0
        for values, scores, target in zip(posteriors, influence, targets, strict=True):
            weights = naive.window_weights(scores, temperature)
            total -= math.log(naive.series_probability(weights, values)[target])
        return total

    grid = np.geomspace(1.1e-3, 9, 60)
    assert loss(found) <= min(map(loss, grid)) + 1e-4
    assert found < 0.1


def test_training_that_diverges_is_stopped_with_epoch_and_rate(rng, tmp_path):
    settings = {"max_epochs": 3, "lr": 1e30, "warmup_steps": 0, "checkpoint": tmp_path / "run.checkpoint"}
    with pytest.raises(TrainingError, match=r"the loss is (nan|inf) in epoch \d .*rate 1e\+30"):
        run(toy_learner(), toy_pool(rng), **settings)


def test_mixed_precision_is_for_gpus_unless_requested():
    assert autocast_type(training_plan(), torch.device("cpu")) is None
    assert autocast_type(training_plan(precision="bfloat16"), torch.device("cpu")) == torch.bfloat16


def test_an_epoch_takes_the_batches_of_alg_1_one_after_the_other(rng):
    """Against a loop that is written out: draw, gather by slicing, one step of Adam."""
    pool, config = toy_pool(rng), training_plan(batch_size=50, series_loss_weight=1.0, lr=1e-2)
    order = epoch_order(pool.n_windows, pool.n_samples, seed=4, epoch=2)
    learner, twin = toy_learner(), toy_learner()
    for entry in (learner, twin):
        entry.backbone[0].bias = None  # the normalisation takes it away again; its gradient is noise
    optimizer = torch.optim.Adam(learner.parameters())
    torch.manual_seed(8)
    step = step_for(learner, pool, optimizer, config=config)
    loss = train_epoch(step, learner, pool, optimizer, config=config, order=order, first_step=3)

    torch.manual_seed(8)
    adam, losses = torch.optim.Adam(twin.parameters()), []
    twin.train()
    for step, first in enumerate(range(0, len(order), 50)):
        batch = order[first : first + 50].tolist()
        windows = torch.stack([pool.strip[:, s : s + LENGTH] for s in pool.starts[batch].tolist()])
        adam.param_groups[0]["lr"] = learning_rate(config, 3 + step, len(pool))
        losses.append(
            batch_loss(
                twin.backbone(windows),
                pool.influence[batch],
                pool.series[batch],
                pool.targets,
                temperature=torch.tensor(0.1),
                window_loss_weight=1.0,
                series_loss_weight=1.0,
            )
        )
        adam.zero_grad()
        losses[-1].backward()
        adam.step()
    assert loss == pytest.approx(torch.stack(losses).mean().item(), abs=1e-6)
    for parameter, other in zip(learner.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter, other, atol=1e-6, rtol=1e-5)


def test_passes_over_a_pool_hold_so_many_samples_however_long_the_windows(rng, monkeypatch):
    """A network keeps something for every sample, so windows ten times as long go a tenth at a time."""
    monkeypatch.setitem(pool_module.SAMPLES_A_PASS, "cpu", 3 * LENGTH)
    pool = toy_pool(rng)
    passes = list(pool.all_windows())
    assert {len(item) for item in passes[:-1]} == {3}
    assert torch.equal(torch.cat(passes), pool.gather(torch.arange(len(pool))))
    monkeypatch.setitem(pool_module.SAMPLES_A_PASS, "cpu", 1)
    assert len(next(pool.all_windows())) == 1


def test_feature_moments_are_those_of_all_features_at_once(rng, monkeypatch):
    monkeypatch.setitem(pool_module.SAMPLES_A_PASS, "cpu", 7 * LENGTH)  # several passes, the last one shorter
    pool = toy_pool(rng)
    backbone = build_backbone("convnet", n_variates=1, window_length=LENGTH, n_outputs=1)
    mean, scale = feature_moments(backbone, pool)
    with torch.no_grad():
        features = backbone.eval().features(pool.gather(torch.arange(len(pool)))).double().numpy()
    np.testing.assert_allclose(mean, features.mean(axis=0), rtol=1e-6, atol=1e-7)
    deviation = features.std(axis=0)
    np.testing.assert_allclose(scale, np.where(deviation > 0, deviation, 1.0), rtol=1e-5)
    backbone.features = lambda windows: torch.ones(len(windows), 3)  # that never change
    mean, scale = feature_moments(backbone, pool)
    assert (mean.tolist(), scale.tolist()) == ([1.0] * 3, [1.0] * 3)


# Memory -------------------------------------------------------------------------------------------------


def test_a_step_needs_what_its_layers_keep_for_the_backward_pass(rng):
    """Of this network that can be counted by hand: the input of each matrix product, and the result of tanh.

    The trial is no larger than the step that it is for.
    """
    pool, seen = toy_pool(rng), []
    network = nn.Sequential(nn.Flatten(), nn.Linear(LENGTH, 32), nn.Tanh(), nn.Linear(32, 1))
    network.register_forward_hook(lambda module, inputs, output: seen.append(len(output)))
    numbers = LENGTH + 32  # the windows; what tanh gives is also what the last layer takes
    assert step_bytes(network, pool, 1000) == 4 * numbers * 1000
    assert step_bytes(network, pool, 16) == 4 * numbers * 16
    assert seen == [32, 64, 16, 32]


def test_the_trial_leaves_weights_statistics_and_generator_alone(rng):
    pool, learner = toy_pool(rng), toy_learner()
    before = state_of(learner)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    assert step_bytes(learner.backbone, pool, 64) > 0
    assert torch.equal(torch.rand(2), expected)
    assert_same_bits(state_of(learner), before)


def test_a_batch_that_cannot_fit_is_refused_with_both_numbers_before_it_starts(rng, monkeypatch):
    pool, learner, watcher = toy_pool(rng), toy_learner(), Watcher()
    n_windows = len(pool)
    needed = step_bytes(learner.backbone, pool, n_windows)
    monkeypatch.setattr(step_memory, "available_bytes", lambda device: needed // 3)
    free = (
        rf"batch of {n_windows} windows needs at least {needed / 1e6:.1f} MB .*{needed / 3e6:.1f} MB are free"
    )
    with pytest.raises(TrainingError, match=free + r".*batch_size to (16|32|64) or less"):
        run(learner, pool, batch_size=10**6, callbacks=[watcher])
    assert watcher.steps == 0


def test_a_batch_that_hardly_fits_is_warned_of_and_tried(rng, monkeypatch, caplog):
    pool, learner = toy_pool(rng), toy_learner()
    needed = step_bytes(learner.backbone, pool, 100)
    for free, warned in ((int(1.1 * needed), True), (int(1.3 * needed), False), (None, False)):
        caplog.clear()
        monkeypatch.setattr(step_memory, "available_bytes", lambda device, free=free: free)
        with caplog.at_level(logging.WARNING, logger="raxss"):
            check_step_memory(learner.backbone, pool, training_plan(batch_size=100))
        assert ("this may not fit" in caplog.text) is warned


def test_a_pool_that_no_memory_bears_is_refused_with_its_size(rng, monkeypatch):
    pool = toy_pool(rng)
    needed = 2 * 4 * pool.strip.numel() + pool_module.BYTES_A_WINDOW * len(pool)
    monkeypatch.setattr(memory, "available_memory", lambda: needed - 1)
    with pytest.raises(DataError, match=rf"{len(pool)} windows of 12 series needs {needed / 1e9:.1f} GB"):
        toy_pool(np.random.default_rng(69421))
    monkeypatch.setattr(memory, "available_memory", lambda: needed)
    assert len(toy_pool(np.random.default_rng(69421))) == len(pool)


def test_memory_that_ends_in_a_step_is_an_error_that_names_the_batch_size(rng):
    learner, watcher = Learner(Greedy(LENGTH), temperature=0.1, learned=False), Watcher()
    with pytest.raises(TrainingError, match=r"memory of this machine .* batch_size=48 .*1000000000000000"):
        run(learner, toy_pool(rng), batch_size=48, callbacks=[watcher])
    assert watcher.ended


def test_another_error_of_the_network_passes_as_it_is(rng):
    class Wrong(Greedy):
        def forward(self, windows):
            return super().forward(windows if len(windows) > 20 else windows[..., 1:])

    learner = Learner(Wrong(LENGTH), temperature=0.1, learned=False)
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes"):
        run(learner, toy_pool(rng), batch_size=20)
