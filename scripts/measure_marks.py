"""Localisation: does the evidence of models lie on oscillations that experts marked?

    python scripts/measure_marks.py --root FOLDER --models FOLDER --out results/faithfulness/ds003498-clip

The root holds the datasets bern-barcelona (which models learn from) and ds003498-clip (marked oscillations). Models
are fitted where their folders do not lie under --models yet: ten minutes to an hour of one core each. Same models,
same tables. What stands in about.md of the output folder is written by hand and begins the page.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.signal import butter, sosfiltfilt
from scipy.stats import spearmanr

from raxss._core.atomic import make_folder, write_bytes, write_text
from raxss.benchmark.pages.figures import png
from raxss.benchmark.pages.markdown import data_table
from raxss.benchmark.study import Study
from raxss.data.bids import read_bids
from raxss.data.contacts import poles_of
from raxss.data.datasets import load_dataset
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.series import Series, SeriesCollection
from raxss.estimator.classifier import RAxSSClassifier
from raxss.explain.faithfulness import (
    Mark,
    WindowAttribution,
    as_marked,
    average_precisions,
    band_power,
    in_windows,
    line_length,
    read_events,
    shift_test,
    truth_from,
    windows_that_know,
)
from raxss.explain.faithfulness.measures import mean_interval
from raxss.method.windows import WindowConfig

SEED = 69421
RATE = 512.0  # of the training data
PASSED = (0.5, 150.0)  # Hz that the training data was filtered to by its authors
FOCAL = "focal"
STUDY = Path(__file__).parents[1] / "studies" / "bern-barcelona.toml"
MODELS = {  # system of the study, window, stride
    "tuned": ("tuned", 1024, 64),
    "raxss-pearson": ("raxss-pearson", 1024, 64),
    "tuned-short": ("tuned", 128, 16),
}
AS_MARKED = (
    "bipolar, 0.5-150 Hz"  # the montage of the marks, the band of the training data: decided beforehand
)
N_RANDOM = 200
HZ_OF_RIPPLES = (80.0, 250.0)
RANDOM = "random windows"
ALL = "all"
RIPPLES = "ripple"
APART = "apart from one moment"
MOMENT = (3.4, 3.9)  # seconds: the one sharp event that most channels share
EVIDENCE = ("contribution", "posterior", "weight")  # of the model; the rest is there to compare
OF_ONE_KIND = (
    "power 80-250 Hz",
    "power 80-150 Hz of what the model got",
    "line length",
)  # whatever the windows
Floats = NDArray[np.float64]
Truth = NDArray[np.bool_]


class Channels(NamedTuple):
    """Channels with marks: as recorded, as prepared for a model, and the marks."""

    recorded: list[Series]
    prepared: list[Series]
    marks: list[Mark]


def fitted(name: str, folder: Path, root: Path, held_out: Sequence[int] = ()) -> RAxSSClassifier:
    """The model of that folder, or one that learns from all of bern-barcelona and is kept there."""
    if (folder / "config.json").exists():
        return RAxSSClassifier.from_pretrained(folder, device="cpu")
    system, length, stride = MODELS[name]
    study = Study.read(STUDY)
    chosen, windows = study.compared()[system], WindowConfig(window_length=length, stride=stride)
    model = chosen.make(windows, seed=SEED, device="cpu", training=study.training)
    learns_from_all = chosen.learns_from_all(chosen.parameters(windows, training=study.training))
    series = training_series(root)
    kept = SeriesCollection(item for place, item in enumerate(series) if place not in set(held_out))
    model.set_params(verbose=1).fit(kept, validation=[] if learns_from_all else None)
    model.save_pretrained(folder)
    return model


def training_series(root: Path) -> SeriesCollection:
    """All of bern-barcelona, with their rate, so that a model resamples other series to it."""
    return SeriesCollection(map(Preparation(rate=RATE).apply, load_dataset("bern-barcelona", root=root)))


def clip(root: Path) -> tuple[SeriesCollection, list[Mark]]:
    """Single contacts at 2000 Hz, and what was marked on differences of them."""
    place = root / "ds003498-clip"
    (events,) = sorted((place / "sub-01").rglob("*_events.tsv"))
    return read_bids(place, only_labelled=False), read_events(events)


def filtered(series: Series) -> Series:
    """As the authors of the training data filtered theirs: Butterworth, fourth order, forwards and backwards."""
    filters = butter(4, PASSED, btype="bandpass", fs=series.rate, output="sos")
    return series.with_samples(sosfiltfilt(filters, series.samples, axis=1))


def less_the_median(contacts: Sequence[Series]) -> list[Series]:
    """As the authors of the training data referred theirs: to the median of all channels."""
    median = np.median([contact.samples for contact in contacts], axis=0)
    return [contact.with_samples(contact.samples - median) for contact in contacts]


def on_both_contacts(marks: Sequence[Mark]) -> list[Mark]:
    """Marks of a difference as marks of its two contacts: which of them it came from is not known."""
    return [replace(mark, channel=pole) for mark in marks for pole in poles_of(mark.channel)]


def given(contacts: SeriesCollection, marks: list[Mark]) -> dict[str, Channels]:
    """The ways in which the recording is shown to models."""
    pairs = as_marked(contacts, marks)
    single, of_single = less_the_median(contacts), on_both_contacts(marks)
    resampled = Preparation(rate=RATE).apply
    ways = {
        AS_MARKED: (pairs, filtered, marks),
        "bipolar, 0-256 Hz": (pairs, lambda item: item, marks),
        "contacts against the median, 0.5-150 Hz": (single, filtered, of_single),
    }
    found = {}
    for name, (recorded, change, own) in ways.items():
        known = truth_from(own, recorded)
        some = [item for item in recorded if item.name in known]  # others have no marks
        found[name] = Channels(some, [resampled(change(item)) for item in some], own)
    return found


def scores_of(
    attributions: Sequence[WindowAttribution],
    recorded: Sequence[Series],
    truths: Sequence[Truth],
    class_: int,
) -> dict[str, list[Floats]]:
    """Everything that could point at events -> a score of each sample, channel by channel."""
    ripples = [
        at_rate_of(item.series, raw, band_power(raw, *HZ_OF_RIPPLES))
        for item, raw in zip(attributions, recorded, strict=True)
    ]
    return {
        "contribution": [item.over_time(item.contributions(class_)) for item in attributions],
        "posterior": [item.over_time(item.centred(class_)) for item in attributions],
        "weight": [item.over_time(item.weights) for item in attributions],
        "windows that know": list(map(windows_that_know, attributions, truths)),
        "power 80-250 Hz in such windows": list(map(in_windows, attributions, ripples)),
        "power 80-250 Hz": ripples,
        "power 80-150 Hz of what the model got": [
            band_power(item.series, 80.0, 150.0) for item in attributions
        ],
        "line length": [
            at_rate_of(item.series, raw, line_length(raw))
            for item, raw in zip(attributions, recorded, strict=True)
        ],
    }


def at_rate_of(prepared: Series, recorded: Series, trace: Floats) -> Floats:
    """What was computed at the rate of the recording, at the times of the samples that the model got."""
    times = np.arange(prepared.n_samples) / prepared.rate
    return np.interp(times, np.arange(len(trace)) / recorded.rate, trace)


def by_random_windows(
    attributions: Sequence[WindowAttribution], truths: Sequence[Truth], kept: Truth
) -> Floats:
    """Mean areas of windows that say anything: ``(N_RANDOM,)``."""
    rng = np.random.default_rng(SEED)
    areas = np.zeros(N_RANDOM)
    for item, truth in zip(attributions, truths, strict=True):
        for draw in range(N_RANDOM):
            values = item.over_time(rng.normal(size=len(item.starts)))
            areas[draw] += average_precisions(values[kept], truth[None, kept])[0]
    return areas / len(attributions)


def measured(model: RAxSSClassifier, shown: Channels, kind: str) -> tuple[pd.DataFrame, pd.DataFrame]:
    """A row for each score, and a row for each channel, of all marks, ripples, or what is outside of `MOMENT`."""
    marks = [mark for mark in shown.marks if kind in (ALL, APART, mark.kind)]
    if kind == APART:
        marks = [mark for mark in marks if not MOMENT[0] <= mark.onset < MOMENT[1]]
    known = truth_from(marks, shown.prepared)
    pairs = [pair for pair in zip(shown.recorded, shown.prepared, strict=True) if pair[1].name in known]
    recorded, prepared = ([pair[place] for pair in pairs] for place in (0, 1))
    truths = [known[item.name] for item in prepared]
    attributions = list(model.model_adapter().attributions(prepared))
    class_ = model.classes_.tolist().index(FOCAL)
    electrodes = [item.origin["electrode"] for item in prepared]
    rows = []
    channels = pd.DataFrame(
        {
            "channel": [item.origin["channel"] for item in prepared],
            "electrode": electrodes,
            "marked_seconds": [truth.sum() / RATE for truth in truths],
            "base_rate": [truth.mean() for truth in truths],
            "focal_probability": [item.probability[class_] for item in attributions],
            "notes": [" ".join(item.notes) for item in model.score_series(prepared)],
        }
    )
    times = np.arange(prepared[0].n_samples) / RATE
    kept = np.full(len(times), True) if kind != APART else (times < MOMENT[0]) | (times >= MOMENT[1])
    cut = [truth[kept] for truth in truths]
    whole = np.concatenate(cut)
    for score, uncut in scores_of(attributions, recorded, truths, class_).items():
        values = [item[kept] for item in uncut]
        found = shift_test(values, cut)
        mean, low, high = mean_interval(found.areas, electrodes)
        channels[score] = found.areas
        rows.append(
            {
                "score": score, "area": mean, "low": low, "high": high, "p": found.p,
                "chance": np.median(found.by_chance),
                "chance_high": np.percentile(found.by_chance, 95.0),
                "pooled": average_precisions(np.concatenate(values), whole[None])[0],
            }
        )  # fmt: skip
    random = by_random_windows(attributions, truths, kept)
    rows.append({"score": RANDOM, "area": random.mean(), "chance_high": np.percentile(random, 95.0)})
    table = pd.DataFrame(rows)
    table["base_rate"], table["pooled_base_rate"] = np.mean(channels["base_rate"]), whole.mean()
    table["n_channels"], table["n_marks"] = len(prepared), len(marks)
    return table, channels


def channels_ranked(channels: pd.DataFrame) -> pd.DataFrame:
    """Whether channels with more marked time are called focal with more certainty: rank correlation, with its p."""
    rows = []
    for (way, name), own in channels.groupby(["input", "model"], sort=False):
        found = spearmanr(own["focal_probability"], own["marked_seconds"])
        rows.append(
            {
                "input": way, "model": name, "n_channels": len(own), "spearman": found.statistic, "p": found.pvalue,
                "called_focal": int((own["focal_probability"] > 0.5).sum()),
                "channels_with_notes": int((own["notes"] != "").sum()),
            }
        )  # fmt: skip
    return pd.DataFrame(rows)


def held_out_auc(name: str, models: Path, root: Path) -> float:
    """Of the same settings fitted without every fifth pair of bern-barcelona, on those pairs."""
    from sklearn.metrics import roc_auc_score

    series = training_series(root)
    pairs = sorted({item.origin["pair"] for item in series})
    held = {pairs[place] for place in range(0, len(pairs), 5)}
    test = [place for place, item in enumerate(series) if item.origin["pair"] in held]
    model = fitted(name, models / f"{name}-held-out", root, held_out=test)
    place = model.classes_.tolist().index(FOCAL)
    scores = model.predict_proba(series[test])[:, place]
    return float(roc_auc_score([item.label == FOCAL for item in series[test]], scores))


# Page and plot --------------------------------------------------------------------------------------------------


def evidence_over_time(model: RAxSSClassifier, shown: Channels) -> dict[str, tuple[Floats, Truth]]:
    """Channel -> contributions to focal, spread over samples, and which samples are marked."""
    class_ = model.classes_.tolist().index(FOCAL)
    truth = truth_from(shown.marks, shown.prepared)
    ordered = sorted(shown.prepared, key=lambda item: item.origin["channel"])
    return {
        item.series.origin["channel"]: (item.over_time(item.contributions(class_)), truth[item.series.name])
        for item in model.model_adapter().attributions(ordered)
    }


def plot(areas: pd.DataFrame, evidence: Mapping[str, tuple[Floats, Truth]], name: str) -> Axes:
    """Areas beside chance, and the evidence of one model over time with the marks on it."""
    figure = Figure(figsize=(12, 6.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.1))
    plot_areas(left, areas)
    plot_evidence(right, evidence, name)
    first: Axes = left
    return first


def plot_areas(ax: Axes, areas: pd.DataFrame) -> None:
    """A row for each score."""
    shown = each_once(areas)
    for place, row in enumerate(shown.to_dict("records")):
        colour = "C3" if row["score"] in EVIDENCE else "C0"
        ax.plot(
            [0, row["chance_high"]],
            [place, place],
            color="0.85",
            linewidth=6,
            solid_capstyle="butt",
            zorder=0,
        )
        ax.plot([row["low"], row["high"]], [place, place], color=colour, linewidth=1.2)
        ax.plot(row["area"], place, "o", color=colour, markersize=4)
    labels = [
        f"{model}: {score}" if model else score
        for model, score in zip(shown["model"], shown["score"], strict=True)
    ]
    ax.axvline(areas["base_rate"].iloc[0], color="black", linewidth=0.8, linestyle="--")
    ax.set_yticks(range(len(shown)), labels, fontsize=7)
    ax.invert_yaxis()
    ax.set_xlim(0, 1)
    ax.set_xlabel("area under the precision-recall curve, mean of channels")
    ax.set_title(
        "dashed: base rate; grey: up to the 95th percentile of chance;\nline: 95 % over electrodes",
        fontsize=9,
    )


def plot_evidence(ax: Axes, evidence: Mapping[str, tuple[Floats, Truth]], name: str) -> None:
    """Channels from top to bottom, each by its own largest contribution; marks in black."""
    image = np.stack([values / max(np.abs(values).max(), 1e-12) for values, _ in evidence.values()])
    extent = (0.0, image.shape[1] / RATE, len(image) - 0.5, -0.5)
    shades = ax.imshow(
        image, aspect="auto", cmap="RdBu_r", vmin=-1, vmax=1, extent=extent, interpolation="nearest"
    )
    for place, (_, truth) in enumerate(evidence.values()):
        edges = np.flatnonzero(np.diff(np.concatenate([[0], truth.astype(int), [0]])))
        for start, stop in edges.reshape(-1, 2):
            ax.plot(
                [start / RATE, stop / RATE], [place, place], color="black", linewidth=3, solid_capstyle="butt"
            )
    ax.set_yticks(range(len(image)), list(evidence), fontsize=7)
    ax.set_xlabel("seconds")
    ax.set_title(f"{name}: contributions to focal (red: for, blue: against); black: marked", fontsize=9)
    ax.get_figure().colorbar(shades, ax=ax, shrink=0.6)  # type: ignore[union-attr]


def page(areas: pd.DataFrame, ranked: pd.DataFrame, about: str) -> str:
    """What it means, which is written by hand, then the plot and the tables."""
    figures = ["area", "low", "high", "chance", "chance_high", "p", "pooled"]
    first = of_interest(areas)
    others = areas.drop(first.index)
    others = others[others["score"].isin(EVIDENCE)]
    counts = areas.drop_duplicates(["input", "marks"])
    parts = [
        "# Marked oscillations of ds003498-clip",
        about.strip(),
        "![areas and evidence](plots/marks.png)",
        f"## {AS_MARKED}, all marks",
        data_table(each_once(first)[["model", "score", *figures]]),
        "## Evidence, asked in other ways",
        "Looked at afterwards; p is not corrected for the number of looks.",
        data_table(others[["input", "marks", "model", "score", *figures]]),
        data_table(counts[["input", "marks", "n_marks", "n_channels", "base_rate", "pooled_base_rate"]]),
        "## Channels",
        "Rank correlation of a channel's probability of focal with its marked time.",
        data_table(ranked),
    ]
    return "\n\n".join(parts) + "\n"


def of_interest(areas: pd.DataFrame) -> pd.DataFrame:
    """What was decided beforehand."""
    return areas[(areas["input"] == AS_MARKED) & (areas["marks"] == ALL)]


def each_once(areas: pd.DataFrame) -> pd.DataFrame:
    """Detectors, which are the same beside every model, once, at the end and without a model."""
    same = areas["score"].isin(OF_ONE_KIND)
    first = areas[same & (areas["model"] == areas["model"].iloc[0])]
    return pd.concat([areas[~same], first.assign(model="")], ignore_index=True)


def main() -> None:
    """Fit or open the models, measure, and write tables, plot and page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--models", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(MODELS), default=list(MODELS))
    parser.add_argument(
        "--held-out", nargs="*", choices=list(MODELS), default=[], help="also fit without a fifth"
    )
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = make_folder(arguments.out)
    ways = given(*clip(arguments.root))
    areas, channels, evidence = [], [], {}
    for name in arguments.only:
        model = fitted(name, arguments.models / name, arguments.root).set_params(verbose=0)
        evidence[name] = evidence_over_time(model, ways[AS_MARKED])
        for way, shown in ways.items():
            for kind in (ALL, RIPPLES, APART):
                about_scores, about_channels = measured(model, shown, kind)
                what = {"input": way, "marks": kind, "model": name}
                areas.append(about_scores.assign(**what)[[*what, *about_scores.columns]])
                if kind == ALL:
                    channels.append(about_channels.assign(**what)[[*what, *about_channels.columns]])
            print(f"{name}, {way}: done", flush=True)
    all_areas, all_channels = (pd.concat(some, ignore_index=True) for some in (areas, channels))
    ranked = channels_ranked(all_channels)
    for table, file in ((all_areas, "areas.csv"), (all_channels, "channels.csv"), (ranked, "ranks.csv")):
        write_text(out / file, table.to_csv(index=False, float_format="%.6g"))
    first = arguments.only[0]
    make_folder(out / "plots")
    write_bytes(out / "plots" / "marks.png", png(plot, of_interest(all_areas), evidence[first], first))
    about = out / "about.md"
    write_text(out / "README.md", page(all_areas, ranked, about.read_text("utf-8") if about.exists() else ""))
    for name in arguments.held_out:
        print(
            f"{name}: AUC {held_out_auc(name, arguments.models, arguments.root):.3f} on pairs held out",
            flush=True,
        )
    print(f"The page is {arguments.out / 'README.md'}")


if __name__ == "__main__":
    main()
