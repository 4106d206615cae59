"""Context of windows: position, level and amplitude against the series, as inputs that are off by default."""

import re
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.base import clone
from torch import nn

from raxss import RAxSSClassifier, Series
from raxss.benchmark.analyses.faithfulness_control import (
    BY_POSITION,
    N_TRAINING,
    NO_CONTEXT,
    controls_beside,
    loud_halves,
    run_context_controls,
)
from raxss.benchmark.analyses.faithfulness_report import write_faithfulness
from raxss.errors import ConfigError
from raxss.estimator.at_once import check_settings, with_members
from raxss.estimator.candidates import Facts, candidates_for
from raxss.estimator.config import Config
from raxss.explain import SeriesEvidence
from raxss.explain.export.tables import write_tables
from raxss.explain.faithfulness import Plan, measures_of, run_probes, statements, summarised
from raxss.explain.faithfulness.context_moved import moved_context
from raxss.explain.faithfulness.perturbed_series import probabilities_of_copies
from raxss.method.augmentation import AugmentationConfig
from raxss.method.backbones import build_backbone
from raxss.method.backbones.mixture import Mixture
from raxss.method.backbones.protocol import (
    WINDOW_CLASSIFIERS,
    describe,
    has_head,
    logits_and_features,
    n_features,
)
from raxss.method.backbones.window_classifiers import TrainingWindows
from raxss.method.backbones.window_numbers import with_numbers
from raxss.method.context import (
    CONTEXT,
    add_context,
    mean_context,
    split_context,
    takes_context,
    window_context,
)
from raxss.method.training.step import augmented
from raxss.method.training.window_pool import WindowPool
from raxss.method.window_scorer import score_windows
from raxss.method.windows import windows_of
from test_cli import raxss

CPU = torch.device("cpu")
SETTINGS = {"window_length": 64, "stride": 32, "device": "cpu", "random_state": 0}
TREES = SETTINGS | {"backbone": "extra-trees", "context": True}
NETWORK = SETTINGS | {"backbone": "convnet", "context": True, "max_epochs": 2, "batch_size": 32}
SERIES = loud_halves(by_position=True)
TRAIN, TEST = SERIES[:N_TRAINING], SERIES[N_TRAINING:]


def with_gaps(series, seed=0):
    """The same series, each with a gap of 30 samples somewhere."""
    generator, found = np.random.default_rng(seed), []
    for item in series:
        samples = np.array(item.samples, dtype=float)
        first = generator.integers(samples.shape[1] - 30)
        samples[:, first : first + 30] = np.nan
        found.append(replace(item, samples=samples, gaps_marked=True))
    return found


@pytest.fixture(scope="module")
def trees():
    return RAxSSClassifier(**TREES).fit(TRAIN)


@pytest.fixture(scope="module")
def network():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return RAxSSClassifier(**NETWORK).fit(TRAIN)


@pytest.fixture(scope="module", params=["trees", "network"])
def model(request):
    return request.getfixturevalue(request.param)


# Numbers ------------------------------------------------------------------------------------------------------


def naive_context(samples, length, stride):
    """A plain loop over windows and variates, by the samples that are present."""
    present = np.isfinite(samples).all(axis=0)
    whole, rows = samples[:, present], []
    for start in range(0, samples.shape[1] - length + 1, stride):
        which = slice(start, start + length)
        own = samples[:, which][:, present[which]]
        if own.shape[1] == 0:
            rows.append([start / (samples.shape[1] - length), 0.0, 0.0])
            continue
        deviations = whole.std(axis=1)
        level = np.mean((own.mean(axis=1) - whole.mean(axis=1)) / deviations)
        amplitude = np.mean(np.log(np.maximum(own.std(axis=1) / deviations, 1e-3)))
        rows.append([start / (samples.shape[1] - length), level, amplitude])
    return np.array(rows)


@pytest.mark.parametrize("n_variates", [1, 3])
@pytest.mark.parametrize("missing", [0, 25, 60])
def test_context_matches_a_plain_loop(rng, n_variates, missing):
    samples = rng.normal(5, 2, size=(n_variates, 301)) * np.linspace(1, 4, 301)
    samples[:, 100:130] = 1.0  # flat windows
    samples[-1, 140 : 140 + missing] = np.nan  # missing in all variates then
    windows = windows_of(Series(samples, gaps_marked=True), window_length=24, stride=7)
    expected = naive_context(samples, 24, 7)
    found = window_context(windows)
    assert found.dtype == np.float32
    assert_allclose(found, expected, atol=1e-5)
    assert found[0, 0] == 0
    scaled = windows_of(Series(10 - 3 * samples, gaps_marked=True), window_length=24, stride=7)
    assert_allclose(window_context(scaled), expected * [1, -1, 1], atol=1e-5)


def test_a_single_window_has_no_context_and_neither_has_a_flat_series():
    for n_samples in (20, 50):  # the first is padded
        windows = windows_of(Series(np.arange(float(n_samples))), window_length=50, stride=10)
        assert_array_equal(window_context(windows), [[0, 0, 0]])
    flat = windows_of(Series(np.ones(90)), window_length=30, stride=30)
    assert_array_equal(window_context(flat), [[0, 0, 0], [0.5, 0, 0], [1, 0, 0]])


def test_the_length_of_a_series_cannot_be_known_from_the_context_of_a_window(rng):
    short, long = (Series(rng.normal(size=n)) for n in (200, 1000))
    positions = [window_context(windows_of(item, window_length=50, stride=5))[:, 0] for item in (short, long)]
    assert (
        {0.0, 1.0}
        <= set(positions[0].tolist())
        <= set(positions[1].round(6).tolist()) | set(positions[0].tolist())
    )
    assert_allclose([item[-1] for item in positions], 1.0)


@pytest.mark.parametrize("length", [1, 2, 3, 64])
@pytest.mark.parametrize("with_mask", [False, True])
def test_context_is_added_to_windows_of_any_length_and_split_off_again(rng, length, with_mask):
    windows = torch.from_numpy(rng.normal(size=(5, 2 + with_mask, length))).float()
    context = torch.from_numpy(rng.normal(size=(5, 3))).float()
    values, found = split_context(add_context(windows, context), n_variates=2)
    assert torch.equal(values, windows)
    assert torch.equal(found, context)
    assert split_context(windows[:, :2], n_variates=2)[1] is None
    assert add_context(windows, None) is windows


# Backbones ----------------------------------------------------------------------------------------------------


class NoFeatures(nn.Module):
    """Two logits for two classes, and no features."""

    def __init__(self, n_variates, window_length, n_outputs):
        super().__init__()
        self.last = nn.Linear(n_variates * window_length, 2)

    def forward(self, windows):
        return self.last(windows.flatten(1))


@pytest.mark.parametrize("backbone", ["convnet", "patchtst", NoFeatures])
@pytest.mark.parametrize("share_missing", [False, True])
def test_context_is_added_to_the_logits_of_a_network(rng, backbone, share_missing):
    torch.manual_seed(0)
    network = build_backbone(backbone, n_variates=2, window_length=64, n_outputs=1).eval()
    whole = with_numbers(network, 2, 64, 1, context=True, share_missing=share_missing).eval()
    windows = torch.from_numpy(rng.normal(size=(3, 2, 64))).float()
    context = torch.from_numpy(rng.normal(size=(3, 3))).float()
    present = torch.ones(3, 1, 64)
    present[1, :, :16] = 0.0
    whole.look_at(add_context(windows, context))
    assert_allclose(mean_context(whole), context.mean(dim=0), rtol=1e-6)
    with torch.no_grad():
        expected = network(windows)
        torch.testing.assert_close(
            whole(windows)[:, -1], expected[:, -1] + whole.context(context.mean(dim=0))
        )  # a trial of shapes
        expected[:, -1] += whole.context(context)[:, 0]
        torch.testing.assert_close(whole(add_context(windows, context)), expected)
        masked = torch.cat([windows * present, present], dim=1)
        expected = network(masked if backbone == "convnet" else windows * present)
        expected[:, -1] += whole.context(context)[:, 0]
        if share_missing:
            expected[:, -1] += whole.share.weight[0, 0] * torch.tensor([0.0, 0.25, 0.0])
        torch.testing.assert_close(whole(add_context(masked, context)), expected)
        if backbone is NoFeatures:
            assert whole.features is None
            assert not has_head(whole)
            return
        logits, features = logits_and_features(whole, add_context(masked, context))
        torch.testing.assert_close(logits, expected)
        assert features.shape[1] == n_features(whole, 2, 64) == n_features(network, 2, 64) + 3 + share_missing
        torch.testing.assert_close(features[:, -3:], context)
    assert describe(whole).split(",")[0].endswith("and context" if share_missing else "with context")


def test_without_numbers_a_network_is_left_alone():
    network = build_backbone("dlinear", n_variates=1, window_length=16, n_outputs=1)
    assert with_numbers(network, 1, 16, 1) is network


@pytest.mark.parametrize("name", sorted(set(WINDOW_CLASSIFIERS) - {"mixture"}))
@pytest.mark.parametrize("n_outputs", [1, 3])
def test_window_classifiers_have_context_as_three_more_features(rng, name, n_outputs):
    shape = {"n_variates": 2, "window_length": 32, "n_outputs": n_outputs}
    plain, more = (
        build_backbone(name, **shape, options={"view": "statistics", "context": on}) for on in (False, True)
    )
    assert more.d == plain.d + 3
    n_classes, n = max(n_outputs, 2), 60
    targets = np.arange(n) % n_classes
    context = torch.from_numpy(rng.normal(size=(n, 3)) + 6 * targets[:, None]).float()
    mask = torch.from_numpy(rng.random((n, 1, 32)) > 0.2).float()
    windows = torch.cat([torch.from_numpy(rng.normal(size=(n, 2, 32))).float() * mask, mask], dim=1)
    more.view.look_at(windows[:, :2])
    plain.view.look_at(windows[:, :2])
    features = more._view(add_context(windows, context))
    torch.testing.assert_close(features, torch.cat([plain._view(windows), context], dim=1))
    training = TrainingWindows(
        windows=add_context(torch.zeros(n, 2, 32), context), targets=targets, series=np.arange(n),
        folds=np.arange(n) // 20, n_classes=n_classes, weights=np.ones(n), seed=0,
    )  # fmt: skip
    found = more.fit_windows(training)
    assert_allclose(mean_context(more), context.mean(dim=0), rtol=1e-5)
    assert (found.argmax(axis=1) == targets).mean() > 0.8  # nothing else tells the class
    held_out = more.held_out(0)
    assert takes_context(held_out)
    assert_allclose(mean_context(held_out), mean_context(more))
    logits, features = more.logits_and_features(training.windows)
    assert torch.equal(logits, more(training.windows))
    assert features.shape == (n, n_features(more, 2, 32))
    again = build_backbone(name, **shape, options={"view": "statistics", "context": True})
    again.load_state_dict(more.state_dict())
    assert torch.equal(again(training.windows), logits)


def test_members_of_a_mixture_get_the_rows_that_they_take(rng):
    members = [{"backbone": "ridge", "context": True}, {"backbone": "ridge"}, {"backbone": "dlinear"}]
    mixture = Mixture(1, 32, 1, members=members)
    assert takes_context(mixture)
    context = torch.from_numpy(rng.normal(size=(40, 3))).float()
    mask = torch.from_numpy(rng.random((40, 1, 32)) > 0.2).float()
    windows = torch.cat([torch.from_numpy(rng.normal(size=(40, 1, 32))).float(), mask], dim=1)
    training = TrainingWindows(
        windows=add_context(windows, context), targets=np.arange(40) % 2, series=np.arange(40),
        folds=np.arange(40) // 20, n_classes=2, weights=np.ones(40), seed=0,
    )  # fmt: skip
    mixture.fit_windows(training)
    assert mixture.eval()(training.windows).shape == (40, 1)
    assert_allclose(mean_context(mixture), context.mean(dim=0), rtol=1e-5)
    seen = [mixture._seen_by(member, training.windows).shape[1] for member in mixture.members]
    assert seen == [3, 2, 1]


def test_context_goes_to_the_window_classifiers_of_a_mixture():
    def options(**settings):
        return with_members(Config.from_parameters(settings), [5000] * 400, 1).backbone.backbone_options

    members = options(context=True, share_missing=True)["members"]
    assert [member.get("context", False) for member in members] == [True] * 4 + [False]
    assert [member.get("share_missing", False) for member in members] == [True] * 4 + [False]
    assert all("context" not in member for member in options(share_missing=True)["members"])
    assert options(backbone="logistic", context=True) == {"context": True}
    assert options(backbone="convnet", context=True) == {}
    config = Config.from_parameters({"context": True})
    with pytest.raises(
        ConfigError, match=r"context is true, but the backbone Ridge takes no context of windows"
    ):
        check_settings(config, build_backbone("ridge", n_variates=1, window_length=32, n_outputs=1))


# Windows of training and of prediction --------------------------------------------------------------------------


class Rows(nn.Module):
    """Keeps the windows that it gets."""

    takes_context = handles_missing = True

    def forward(self, windows):
        self.seen = windows.clone()
        return windows[:, :1, 0]


@pytest.mark.parametrize("gaps", [False, True])
def test_the_pool_has_the_windows_that_prediction_has(gaps):
    series = with_gaps(TRAIN[:4]) if gaps else TRAIN[:4]
    cutting = {"window_length": 64, "stride": 32}
    pool = WindowPool.of_equals(series, np.array([0, 1, 0, 1]), **cutting, device=CPU, with_context=True)
    backbone = Rows()
    pool.has_rows_for(backbone)
    found = []
    for item in series:
        score_windows(backbone, windows_of(item, **cutting), device=CPU)
        found.append(backbone.seen)
    expected = torch.cat(found)
    assert expected.shape[1] == 2 + gaps
    assert torch.equal(pool.gather(torch.arange(len(pool))), expected)
    batch = pool.take(torch.arange(len(pool)))
    assert torch.equal(batch.windows, expected)
    assert torch.equal(batch.values, expected[:, :1])
    pool.has_rows_for(build_backbone("dlinear", n_variates=1, window_length=64, n_outputs=1))
    assert torch.equal(pool.gather(torch.arange(len(pool))), expected[:, :1])


@pytest.mark.parametrize("gaps", [False, True])
def test_changes_of_training_windows_leave_their_context(gaps):
    series = with_gaps(TRAIN[:4]) if gaps else TRAIN[:4]
    pool = WindowPool.of_equals(
        series, np.array([0, 1, 0, 1]), window_length=64, stride=32, device=CPU, with_context=True
    )
    pool.has_rows_for(Rows())
    batch = pool.take(torch.arange(len(pool)))
    torch.manual_seed(0)
    changed = augmented(batch, AugmentationConfig(flip=1.0, noise=0.1))
    planted = pool.plant_gaps(batch).windows
    for windows in (changed, planted):
        assert windows.shape == batch.windows.shape
        assert torch.equal(split_context(windows, 1)[1], pool.context)
    assert not torch.equal(changed[:, 0], batch.windows[:, 0])


# Models -------------------------------------------------------------------------------------------------------


def test_settings_from_before_keep_their_hash_and_folders_from_before_have_it_off():
    assert Config().hash == Config.from_parameters({"context": False}).hash
    assert Config().hash != Config.from_parameters({"context": True}).hash
    tables = Config.from_parameters({"augmentation": {}}).tables()
    del tables["backbone"]["context"]
    assert Config.from_tables(tables).backbone.context is False
    with pytest.raises(ConfigError, match=r"context must be true or false, got 1"):
        RAxSSClassifier(context=1).config  # noqa: B018


def test_context_tells_what_samples_of_windows_cannot(trees):
    labels = [item.label for item in TEST]
    assert (trees.predict(TEST) == labels).mean() > 0.9
    plain = RAxSSClassifier(**TREES | {"context": False}).fit(TRAIN)
    assert not takes_context(plain.backbone_)
    mean = np.abs(trees.predict_proba(TEST)[:, 0] - 0.5).mean()
    assert mean > 3 * np.abs(plain.predict_proba(TEST)[:, 0] - 0.5).mean()
    assert trees.learning_report_.evaluation.model.balanced_accuracy > 0.9  # out of fold, too


def test_a_saved_model_predicts_the_same(model, tmp_path):
    folder = model.save_pretrained(tmp_path / "model")
    again = RAxSSClassifier.from_pretrained(folder, device="cpu")
    assert again.context is True
    assert_array_equal(again.predict_proba(TEST), model.predict_proba(TEST))
    assert_array_equal(mean_context(again.backbone_), mean_context(model.backbone_))
    assert "the position of a window in its series" in (folder / "README.md").read_text().replace("\n  ", " ")
    assert clone(again).get_params()["context"] is True


def test_copies_of_a_series_are_scored_as_series_are(model):
    copies = [item.with_samples(item.samples[:, :600]) for item in TEST[:3]]
    changed = np.array(copies[0].samples)
    changed[:, 100:164] = 0.0
    copies += [copies[0].with_samples(changed), copies[0]]
    found = probabilities_of_copies(model.predictor(), copies)
    assert_allclose(found, model.predict_proba(copies), atol=1e-6)
    neutral = model.predictor().with_neutral_context()
    expected = [item.probability for item in neutral.predictions(copies, with_lists=False)]
    assert_allclose(probabilities_of_copies(neutral, copies), expected, atol=1e-6)


@pytest.mark.filterwarnings("ignore::raxss.errors.RAxSSWarning")
@pytest.mark.parametrize(
    "settings",
    [
        TREES | {"share_missing": True},
        SETTINGS | {"context": True, "stride": 64},
        NETWORK | {"share_missing": True},
        NETWORK | {"weighting": "gated", "refresh": "batch", "projection": 4, "series_loss_weight": 1.0},
        NETWORK | {"backbone": "mixture", "backbone_options": {
            "members": [{"backbone": "extra-trees", "n_trees": 30}, {"backbone": "dlinear"}]}},
    ],
    ids=["trees", "mixture", "network", "gated", "mixture with a network"],
)  # fmt: skip
def test_context_goes_with_gaps_and_other_settings(settings):
    train, test = with_gaps(TRAIN), with_gaps(TEST, seed=1)
    model = RAxSSClassifier(**settings).fit(train)
    evidence = model.explain(test[0])
    assert_allclose(evidence.probability, model.predict_proba(test[:1])[0], atol=1e-7)
    assert_allclose(evidence.from_context.sum(), 0.0, atol=1e-9)
    assert evidence.settings["context"] is True


# Evidence -----------------------------------------------------------------------------------------------------


def test_evidence_says_what_came_from_context(model):
    series = TEST[0]
    evidence = model.explain(series)
    neutral = model.predictor().with_neutral_context()
    without = next(neutral.predictions([series]))
    assert_allclose(evidence.from_context, evidence.probability - without.probability, atol=1e-12)
    windows = windows_of(series, window_length=64, stride=32)
    columns = [f"context_{name}" for name in CONTEXT]
    assert_array_equal(evidence.windows[columns].to_numpy().astype(np.float32), window_context(windows))
    for place, class_ in enumerate(evidence.classes):
        assert_allclose(
            evidence.windows[f"from_context_{class_}"],
            evidence.windows[f"posterior_{class_}"] - without.aggregation.posteriors[:, place],
            atol=1e-12,
        )
    assert re.search(r"from context: [+-]0\.\d{3} of the score of '(early|late)'", repr(evidence))


def test_evidence_of_context_is_saved_exported_and_reported(trees, tmp_path):
    evidence = trees.explain(TEST[0])
    assert abs(evidence.from_context[0]) > 0.1
    again = SeriesEvidence.load(evidence.save(tmp_path, figures=False))
    assert_array_equal(again.from_context, evidence.from_context)
    pd.testing.assert_frame_equal(again.windows, evidence.windows)
    write_tables(trees.explain_each(TEST[:2]), tmp_path / "tables")
    summary = pd.read_parquet(tmp_path / "tables" / "summary.parquet")
    assert_array_equal(summary.loc[0, ["from_context_early", "from_context_late"]], evidence.from_context)
    contents = trees.report(TEST[:1]).contents
    assert contents["settings"]["context"] is True
    assert any("come from their context" in warning for warning in contents["channels"][0]["warnings"])


def test_without_context_evidence_has_nothing_of_it():
    model = RAxSSClassifier(**TREES | {"context": False, "backbone_options": {"n_trees": 30}}).fit(TRAIN)
    evidence = model.explain(TEST[0])
    assert evidence.from_context is None
    assert not [name for name in evidence.columns if "context" in name]
    assert "context" not in evidence.to_json() + repr(evidence)
    assert moved_context(model.model_adapter(), next(model.model_adapter().attributions(TEST[:1]))) is None


# Faithfulness -------------------------------------------------------------------------------------------------


def test_nearly_all_rests_on_context_where_classes_differ_in_nothing_else_and_else_nothing(tmp_path):
    found = run_context_controls(tmp_path / "controls", device="cpu", quiet=True)
    numbers = {}
    for name, parts in found.items():
        summary = summarised(measures_of(parts))
        for row in summary[summary["probe"] == "context"].to_dict("records"):
            numbers[name, row["of"], row["measure"]] = row["mean"]
        holds = {item.holds for item in statements(summary) if item.probe == "context"}
        assert holds == ({"yes"} if name == BY_POSITION else {"no"})
    assert numbers[BY_POSITION, "shifted", "flipped"] > 0.9
    assert numbers[BY_POSITION, "shifted", "balanced accuracy lost"] > 0.9
    probability = np.array([item["probability"] for item in found[BY_POSITION].series])
    away = np.abs(probability - 0.5)[:, 0].mean()  # from what is said without any knowledge
    assert numbers[BY_POSITION, "neutral", "fall"] > 0.8 * away
    for change in ("shifted", "shuffled", "neutral"):
        assert numbers[NO_CONTEXT, change, "flipped"] == 0
        assert numbers[NO_CONTEXT, change, "moved"] < 0.005


def test_the_page_shows_the_probe_of_context_and_its_controls(trees, tmp_path):
    plan = Plan(n_series=8, probes=("context",))
    parts = run_probes(trees.model_adapter(), TEST, tmp_path / "run", plan=plan, quiet=True)
    controls = run_context_controls(tmp_path / "controls", plan=plan, device="cpu", quiet=True)
    page = write_faithfulness({"own": parts}, out=tmp_path, title="t", controls=controls)[-1].read_text()
    assert "### own: windows elsewhere in time" in page
    assert "controls of the probe of context alone" in page
    assert "With the context of windows shifted, and their samples as they are, the score moves" in page
    assert f"{BY_POSITION} (control)" not in page  # no verdict on explanations rests on one probe
    assert BY_POSITION in page


def test_controls_of_context_are_there_where_a_model_was_asked_about_it(
    monkeypatch, trees, network, tmp_path
):
    place = "raxss.benchmark.analyses.faithfulness_control"
    monkeypatch.setattr(f"{place}.run_controls", lambda *_, **__: {"other": None})
    monkeypatch.setattr(f"{place}.run_context_controls", lambda *_, **__: {"context": None})
    plan = Plan(n_series=1, probes=("context",))
    asked = run_probes(trees.model_adapter(), TEST, tmp_path, plan=plan, quiet=True)
    assert list(controls_beside([asked], tmp_path, plan=plan)) == ["other", "context"]
    not_asked = replace(asked, by_series={"context": [None]})
    assert list(controls_beside([not_asked], tmp_path, plan=plan)) == ["other"]


def test_faithfulness_of_one_series_has_the_probe_and_gradients_hold_context(network):
    adapter = network.model_adapter()
    attribution = next(adapter.attributions(TEST[:1]))
    assert [row["change"] for row in moved_context(adapter, attribution)] == [
        "shifted",
        "shuffled",
        "neutral",
    ]
    found = adapter.gradient_attribution(attribution, 0, "mean", seed=0)
    assert found.samples.shape == (TEST[0].n_samples,)
    assert found.found == pytest.approx(found.change, abs=0.02)
    outputs = next(adapter.layers(TEST[:1]))
    assert all(len(values) == len(attribution.starts) for values in outputs.values())
    single = replace(attribution, starts=attribution.starts[:1])
    assert moved_context(adapter, single) is None


# Search and command line --------------------------------------------------------------------------------------


def test_context_is_a_candidate_where_series_are_several_windows():
    long, short = (Facts.of([Series(np.zeros(n))] * 40) for n in (9000, 300))
    assert "context" in [item.name for item in candidates_for(long)]
    assert "context" not in [item.name for item in candidates_for(short)]


@pytest.mark.filterwarnings("ignore::raxss.errors.RAxSSWarning")
def test_the_command_line_has_the_switch_and_the_search_decides_itself(tmp_path):
    options = ["--window-length", "128", "--stride", "64", "--device", "cpu", "--context"]
    raxss("fit", "synthetic", "--out", tmp_path / "model", *options)
    assert RAxSSClassifier.from_pretrained(tmp_path / "model", device="cpu").context is True
    text = raxss("fit", "synthetic", "--out", tmp_path / "x", "--preset", "auto", "--context", code=2)
    assert "--context does not go with --preset auto" in text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device on this machine")
@pytest.mark.parametrize("settings", [TREES, NETWORK], ids=["trees", "network"])
def test_a_gpu_scores_windows_with_context_as_the_cpu_does(settings):
    model = RAxSSClassifier(**settings | {"device": "cuda"}).fit(TRAIN)  # with replayed steps
    copies = [item.with_samples(item.samples[:, :600]) for item in TEST[:4]]
    found = model.predict_proba(TEST), probabilities_of_copies(model.predictor(), copies)
    model.set_params(device="cpu")
    assert_allclose(found[0], model.predict_proba(TEST), atol=1e-4)
    assert_allclose(found[1], model.predict_proba(copies), atol=1e-4)
