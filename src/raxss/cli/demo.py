"""``raxss demo --out DIR``: train, evaluate and explain on the embedded sample."""

from __future__ import annotations

import platform
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raxss._core.atomic import whole_folder, write_json
from raxss.cli.common import described

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from raxss.data.series import SeriesCollection
    from raxss.estimator.classifier import RAxSSClassifier

POSITIVE = "AF"
WINDOW_LENGTH, STRIDE = 1024, 256  # of other presets: 3.4 s, which is three or four heart beats, every 0.9 s


@described(out="Folder to write.")
def demo(
    out: Path,
    preset: str = "recommended",
    seed: int = 69421,
    max_epochs: int | None = None,
    device: str = "auto",
    overwrite: bool = False,
) -> None:
    """Train on the embedded ECG sample, evaluate on held-out records, and explain some of them.

    Writes metrics.json, the folder model, and the folder evidence with reports and figures.
    """
    from raxss.cli.fit import settings_from
    from raxss.data.datasets.sample import load_sample
    from raxss.data.splits import hold_out
    from raxss.estimator.classifier import RAxSSClassifier
    from raxss.estimator.persistence import describe_model
    from raxss.explain.export.report import report_of

    began = time.perf_counter()
    signal = "ecg" if preset == "tuned" else None
    shape = {} if preset == "recommended" else {"window_length": WINDOW_LENGTH, "stride": STRIDE}
    settings = settings_from(preset, None, signal=signal, max_epochs=max_epochs, **shape)
    with whole_folder(out, overwrite=overwrite) as folder:
        sample = load_sample()
        kept, held = hold_out(sample.labels, groups=sample.groups, fraction=0.2, seed=seed)
        print(f"Training on {len(kept)} ECG records, atrial fibrillation against normal rhythm…", flush=True)
        model = RAxSSClassifier.from_config(settings, random_state=seed, device=device, verbose=1)
        model.fit(sample[kept])
        if model.interrupted_:
            raise KeyboardInterrupt  # half a demo has no figures to show
        model.save_pretrained(folder / "model")
        print(f"Scoring {len(held)} records that training never saw…", flush=True)
        probability = model.predict_proba(sample[held])
        metrics = _metrics(model, sample[held], probability)
        metrics |= {"n_train": len(kept), "n_test": len(held), "seconds": time.perf_counter() - began}
        metrics |= _circumstances(model, seed, preset)
        write_json(folder / "metrics.json", metrics)
        print("Explaining three of them…", flush=True)
        facts, evidence = describe_model(model), []
        for place_of_case in _telling_cases(probability):
            telling_case = model.explain(sample[held[place_of_case]])
            place = telling_case.save(folder / "evidence")  # JSON, Parquet and figures of one record
            report_of(telling_case, model=facts).save(place / "report.html")
            evidence.append(place.name)
    _print_results(out, metrics, evidence)


def _metrics(
    model: RAxSSClassifier, test: SeriesCollection, probability: NDArray[np.float64]
) -> dict[str, Any]:
    """Figures with intervals, by the model's own weights and uniform ones, and the share of the largest class."""
    import numpy as np

    from raxss.metrics import score_with_intervals

    def figures(found: NDArray[np.float64]) -> dict[str, Any]:
        options: dict[str, Any] = {"classes": model.classes_, "positive": POSITIVE, "groups": test.groups}
        return dict(score_with_intervals(test.labels, found, **options))

    own, weighting = figures(probability), model.weighting
    model.set_params(weighting="uniform")
    uniform = figures(model.predict_proba(test))
    model.set_params(weighting=weighting)
    share = float(np.unique(test.labels, return_counts=True)[1].max() / len(test))
    return own | {"uniform": uniform, "largest_share": share}


def _circumstances(model: RAxSSClassifier, seed: int, preset: str) -> dict[str, Any]:
    """What the numbers depend on."""
    import torch

    from raxss.estimator.persistence import versions
    from raxss.method.window_scorer import pick_device

    device = pick_device(model.device)
    hardware = torch.cuda.get_device_name(device) if device.type == "cuda" else f"{platform.machine()} CPU"
    return {
        "preset": preset,
        "seed": seed,
        "weighting": model.weighting,
        "config_hash": model.config_.hash,
        "hardware": f"{hardware}, {torch.get_num_threads()} threads",
        "versions": versions(),
    }


def _telling_cases(probability: NDArray[np.float64]) -> list[int]:
    """Places of the surest of each class, and of the least sure of all; each once."""
    picks = [int(place) for place in probability.argmax(axis=0)]
    picks.append(int(abs(probability[:, 0] - 0.5).argmin()))
    return list(dict.fromkeys(picks))


def _print_results(out: Path, metrics: dict[str, Any], evidence: list[str]) -> None:
    from rich.console import Console
    from rich.table import Table

    names = ("auc", "average_precision", "f1", "accuracy", "balanced_accuracy")
    title = f"{metrics['n_test']} held-out records, 95 % bootstrap intervals"
    table = Table("", "AUC", "average precision", "F1", "accuracy", "balanced accuracy", title=title)
    for name, figures in {
        f"{metrics['weighting']} weights": metrics,
        "uniform weights": metrics["uniform"],
    }.items():
        cells = (figures[key] for key in names)
        table.add_row(
            name, *(f"{cell['value']:.3f}\n({cell['low']:.3f} to {cell['high']:.3f})" for cell in cells)
        )
    console = Console(width=120)
    console.print(table)
    print(f"Always naming the more frequent class would have an accuracy of {metrics['largest_share']:.3f}.")
    print(f"Done in {metrics['seconds']:.0f} s. The results are in {out}:")
    print(f"  {out / 'metrics.json'}  the figures above, with seed, versions and hardware")
    print(f"  {out / 'model'}  the model; its README.md is the model card")
    for name in evidence:
        print(f"  {out / 'evidence' / name / 'report.html'}  why {name} got its score")
    first = (out / "evidence" / evidence[0] / "report.html").resolve()
    print(f"Open a report in any browser, no network is needed: {first.as_uri()}")
    print("Research use only.")
