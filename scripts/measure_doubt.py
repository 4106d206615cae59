"""Measure whether probabilities, prediction sets and warnings keep what they promise.

    python scripts/measure_doubt.py --root FOLDER --out results/doubt
    python scripts/measure_doubt.py --root FOLDER --out results/doubt --system tuned --device cuda

FOLDER holds the datasets bern-barcelona, bonn and cinc2017. A small network a fold, some minutes on one core, or a
system with the settings of studies/DATASET.toml; what is there already (answers-*.parquet) is not computed again,
and the page has all of it. Same folder, same seed, same threads: same tables.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from raxss._core.atomic import make_folder, whole_file, write_text
from raxss.benchmark.analyses.coverage import ALPHAS, WAYS, class_index, coverage_of, figures_of, recalibrated
from raxss.benchmark.study import Study
from raxss.data.datasets import load_dataset
from raxss.data.series import SeriesCollection
from raxss.data.splits import folds
from raxss.estimator.classifier import RAxSSClassifier
from raxss.estimator.config import Config
from raxss.uncertainty.ood import OODDetector

SEED = 69421
SMALL = "small"  # a network of this file, no system
STUDIES = Path(__file__).parents[1] / "studies"
CLASSES = {"bonn": ["F", "N"]}
MOST_SERIES = 600  # of a dataset: enough for validation parts of 120
WINDOWS = {"bern-barcelona": (1024, 512), "bonn": (512, 256), "cinc2017": (1024, 512)}


def series_of(name: str, root: Path) -> SeriesCollection:
    """The dataset, or as many of it as are enough, drawn by the seed."""
    whole = load_dataset(name, root=root, classes=CLASSES.get(name))
    drawn = np.sort(np.random.default_rng(SEED).permutation(len(whole))[:MOST_SERIES])
    return whole[drawn]


def settings_of(name: str, system: str) -> Config:
    """A small network, since uncertainty is measured and not accuracy; or the settings of a system."""
    if system != SMALL:
        study = Study.read(STUDIES / f"{name}.toml")
        windows = study.datasets[0].windows
        made = study.compared()[system].make(windows, seed=SEED, training=study.training)
        return made.config
    length, stride = WINDOWS[name]
    wanted = {
        "window_length": length,
        "stride": stride,
        "max_epochs": 6,
        "patience": 3,
        "precision": "float32",
    }
    return Config.from_parameters(wanted)


def held_out_predictions(
    series: SeriesCollection,
    settings: Config,
    *,
    n_folds: int = 5,
    validation: float = 0.2,
    seed: int = 69421,
    ways: Iterable[tuple[str, str]] = WAYS,
    alphas: Sequence[float] = ALPHAS,
    device: str = "auto",
) -> Iterator[pd.DataFrame]:
    """One table a fold: a row for each test series and calibration.

    Columns: ``fold, series, n_validation, calibration, level, target, probability_<place>...,
    set_<alpha>_<place>..., low, high, warned``. ``target`` is the index of the true class; low and high are
    the interval of the most likely class.
    """
    for place, split in enumerate(folds(series, n_folds=n_folds, validation=validation, seed=seed)):
        train, held, test = split.parts(series)
        model = RAxSSClassifier.from_config(settings, random_state=seed, device=device)
        model.fit(train, validation=held)
        rows: list[dict[str, Any]] = []
        for (method, level), found in recalibrated(model, held, test, ways=ways, alphas=alphas):
            for item, columns in zip(test, found, strict=True):
                row = {"fold": place, "series": item.name, "n_validation": len(held)}
                row |= {"calibration": method, "level": level, "target": class_index(model, item.label)}
                rows.append(row | columns)
        yield pd.DataFrame(rows)


def alarms(
    collections: Mapping[str, SeriesCollection], *, share: float = 0.7, most: int = 200, seed: int = 69421
) -> pd.DataFrame:
    """Share of series that are called unlike the training series, by length and spectrum alone: a row a pair.

    ``learned, given, n, length, spectrum``: the collection that ``share`` of was learned from, the collection given
    (of the same one the rest: false alarms), at most ``most`` series of it, and the shares that were warned of.
    Rates are left aside, since most foreign series differ in them.
    """
    rows = []
    drawn = {
        name: np.random.default_rng(seed).permutation(len(collection))
        for name, collection in collections.items()
    }
    for learned, own in collections.items():
        n_known = int(share * len(own))
        detector = OODDetector.of([own[int(place)] for place in drawn[learned][:n_known]])
        for given, series in collections.items():
            left = drawn[given][n_known:] if given == learned else drawn[given]
            notes = [detector.notes(series[int(place)]) for place in left[:most]]
            reasons = [{note.split()[1] for note in some} for some in notes]  # the recording, its spectrum
            rows.append(
                {
                    "learned": learned,
                    "given": given,
                    "n": len(reasons),
                    "length": float(np.mean(["recording" in words for words in reasons])),
                    "spectrum": float(np.mean(["spectrum" in words for words in reasons])),
                }
            )
    return pd.DataFrame(rows)


def markdown(table: pd.DataFrame) -> str:
    """As text, figures with three decimals; a dash where there is none."""
    shown = table.map(
        lambda value: "–" if value != value else f"{value:.3f}" if isinstance(value, float) else str(value)
    )
    lines = [shown.columns.tolist(), ["---"] * len(shown.columns), *shown.to_numpy().tolist()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


ABOUT = """# Does the doubt hold?

Made by `scripts/measure_doubt.py`: five folds by group, 60 % to learn from, 20 % validation, 20 % test. `small`: a
convolutional network a fold, its validation part used for early stopping, calibration and prediction sets alike.
`tuned`: the system of that name as the dataset's study has it, which stops by nothing. All numbers are of
the test parts together. `warned`: share of the series, all of the same dataset, that were called unlike the
training data (false alarms). `width`: mean width of the interval of the most likely class, Venn-Abers for
`venn-abers` of series, else the block bootstrap over windows, which there is not (–) where a series has fewer
than five windows' lengths. `error`: standard error of the coverage over the
folds. `least`: coverage of the class that has the least. `right`: share of right answers among sets of one class.
"""

UNLIKE = """Share of series that are called unlike those that were learned from, by length and by spectrum; rates
are left aside. Of the same dataset: series held out, false alarms.
"""


def predictions_of(name: str, system: str, arguments: argparse.Namespace) -> pd.DataFrame:
    """Measured, or what was measured before."""
    place = place_of(name, system, arguments.out)
    if not place.exists():
        parts = []
        settings = settings_of(name, system)
        for part in held_out_predictions(
            series_of(name, arguments.root), settings, seed=SEED, device=arguments.device
        ):
            parts.append(part)
            print(f"{name}, {system}: fold {len(parts)} is done", flush=True)
        with whole_file(place) as temporary:
            pd.concat(parts).to_parquet(temporary, index=False)
    return pd.read_parquet(place)


def place_of(name: str, system: str, out: Path) -> Path:
    """File of the predictions of a system on a dataset."""
    return out / f"answers-{system}-{name}.parquet"


def main() -> None:
    """Measure, or take what was measured before, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--datasets", nargs="*", default=list(WINDOWS))
    parser.add_argument("--system", default=SMALL)
    parser.add_argument("--device", default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    out = make_folder(arguments.out)
    about = out / "about.md"  # written by hand: what it means, which overviews quote
    text = ABOUT + (f"\n{about.read_text('utf-8')}" if about.exists() else "")
    for name in arguments.datasets:
        predictions_of(name, arguments.system, arguments)
    for name in WINDOWS:
        for system in (SMALL, "tuned"):
            if place_of(name, system, out).exists():
                predictions = predictions_of(name, system, arguments)
                n_validation = predictions["n_validation"].groupby(predictions["fold"]).first()
                counts = f"{n_validation.min()} to {n_validation.max()} of them for validation"
                text += f"\n## {name}, {system}\n\n{predictions['series'].nunique()} series, {counts}.\n"
                text += f"\n{markdown(figures_of(predictions))}\n\n{markdown(coverage_of(predictions))}\n"
    place = out / "alarms.csv"
    if not place.exists():
        found = alarms({name: series_of(name, arguments.root) for name in WINDOWS})
        write_text(place, found.to_csv(index=False))
    text += f"\n## Unlike recordings\n\n{UNLIKE}\n{markdown(pd.read_csv(place))}\n"
    write_text(out / "README.md", text)
    print(f"The tables are in {arguments.out / 'README.md'}")


if __name__ == "__main__":
    main()
