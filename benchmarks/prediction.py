"""Time and memory of prediction and evidence.

    python -m benchmarks.prediction recording [--device cuda] [--channels 100] [--json FILE]
    python -m benchmarks.prediction long [--device cpu] [--hours 24] [--bank local] [--bank-size N] [--json FILE]

`recording`: 100 channels of 300 s at 1 kHz as pooling 24/12 leaves them, from a prepared folder to the Parquet
tables of `raxss explain --one-table`, at the paper's settings, after a warm-up that shares no samples with them.
The parts are timed by themselves too; where a GPU is at work they overlap, so they add up to more than the whole.
`long_channel`: one channel of a day, in a process of its own whose peak memory is what counts. Weights and samples
are made up: neither time nor memory depends on them.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.common import SEED, make_signal, recorded, tell, timed
from raxss import RAxSSClassifier, Series
from raxss._core import atomic as storage
from raxss._core.progress import share_bar
from raxss.data.plan import CollectionPlan, RecordingPlan, SeriesPlan
from raxss.data.prepare import PreparedCollection, read_prepared
from raxss.data.prepare.preparing import prepare
from raxss.data.prepare.preprocessing import Preparation
from raxss.data.recording import ArrayRecording
from raxss.explain import trace, write_tables
from raxss.method.aggregation import aggregate, posteriors_of
from raxss.method.backbones.patchtst import PatchTST
from raxss.method.inference import PAIRS_A_SCORE
from raxss.method.retrieval import Retrieval, clear_cache
from raxss.method.retrieval.cache import cached_retrieve_many
from raxss.method.window_scorer import Scorer
from raxss.method.windows import windows_of

POOLED_RATE = 1000 / 12  # what pooling 24/12 leaves of 1 kHz
WINDOW_LENGTH, STRIDE = 1024, 5


# A recording ------------------------------------------------------------------------------------------------


def recording(
    device: str = "cpu",
    *,
    n_channels: int = 100,
    seconds: float = 300.0,
    n_runs: int | None = None,
    window_length: int = WINDOW_LENGTH,
    stride: int = STRIDE,
) -> dict[str, Any]:
    """Seconds from a prepared folder to Parquet, all in all and by part.

    Parameters
    ----------
    n_runs
        Medians are over so many; by default 5 on a GPU and 1 on the CPU, where one takes minutes.
    """
    n_runs = n_runs or (1 if device == "cpu" else 5)
    n_samples = pooled_samples(seconds)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tell(f"prediction: preparing {n_channels} channels of {n_samples:,} samples")
        prepared_folder(folder / "prepared", n_channels, n_samples, seed=SEED)
        prepared_folder(folder / "others", min(n_channels, 2), n_samples, seed=SEED - 1000)
        model = barely_trained(device, window_length, stride)

        def predict(source: str) -> int:
            clear_cache()
            series = read_prepared(folder / source, verify=True)
            return write_tables(model.explain_each(series), folder / f"{source}-why", overwrite=True)

        for _ in range(1 if device == "cpu" else 3):
            predict("others")
        if device != "cpu":
            predict("prepared")  # memory for a whole recording is taken once
        runs = []
        for run in range(n_runs):
            runs.append(timed(lambda: predict("prepared"), device)[0])
            tell(f"prediction: run {run + 1} of {n_runs}: {runs[-1]:.2f} s")
        series = read_prepared(folder / "prepared")
        n_windows = n_channels * len(windows_of(series[0], window_length=window_length, stride=stride))
        written = sum(file.stat().st_size for file in (folder / "prepared-why").glob("*.parquet"))
        parts = _parts(model, folder, device, n_channels if device != "cpu" else min(n_channels, 5))
    middle = statistics.median(runs)
    network = {"windows_per_second": n_windows / parts["network"]}
    if isinstance(model.backbone_, PatchTST):
        network |= _share_of_matmul(model.backbone_, network["windows_per_second"], device)
    return {
        "settings": {
            "channels": n_channels,
            "samples": n_samples,
            "window_length": window_length,
            "stride": stride,
            "device": device,
            "threads": torch.get_num_threads(),
            "runs": n_runs,
        },
        "n_windows": n_windows,
        "seconds": middle,
        "slowest_seconds": max(runs),
        "windows_per_second": n_windows / middle,
        "parts_by_themselves": parts,
        "network": network,
        "evidence_bytes": written,
    }


def pooled_samples(seconds: float) -> int:
    """What pooling 24/12 leaves of so many seconds at 1 kHz.

    >>> pooled_samples(300)
    24999
    """
    return (round(1000 * seconds) - 24) // 12 + 1


def prepared_folder(folder: Path, n_channels: int, n_samples: int, *, seed: int) -> PreparedCollection:
    """A prepared folder with the channels of one made-up recording."""
    samples = np.stack([make_signal(n_samples, seed=seed + channel) for channel in range(n_channels)])
    opened = partial(ArrayRecording, "made-up", samples, rate=POOLED_RATE)
    wanted = tuple(
        SeriesPlan(f"made-up:{index:03d}", (index,), label=str(index % 2)) for index in range(n_channels)
    )
    plan = CollectionPlan("made-up", Path("."), (RecordingPlan("made-up", (), opened, wanted),))
    prepare(plan, folder, Preparation())
    return read_prepared(folder)


def barely_trained(device: str, window_length: int = WINDOW_LENGTH, stride: int = STRIDE) -> RAxSSClassifier:
    """The paper's model after one step on a handful of windows: as slow as any, and quick to get."""
    rng = np.random.default_rng(SEED)
    series = [Series(rng.normal(size=window_length + 8 * stride), POOLED_RATE) for _ in range(8)]
    shape = {"window_length": window_length, "stride": stride}
    model = RAxSSClassifier.from_preset("paper", max_epochs=1, random_state=0, device=device).set_params(
        **shape
    )
    return model.fit(series, ["0", "1"] * 4)


def _parts(model: RAxSSClassifier, folder: Path, device: str, n_channels: int) -> dict[str, float]:
    """Seconds of reading, retrieval, network, evidence with writing, one after the other, for all channels."""
    spent: dict[str, float] = {}
    spent["read"], everything = timed(lambda: read_prepared(folder / "prepared", verify=True))
    some = everything[:n_channels]
    place, more = torch.device(device), len(everything) / n_channels
    settings = {
        "window_length": model.window_length_,
        "stride": model.stride_,
        "n_neighbors": model.n_neighbors,
        "exclusion": model.config.retrieval.samples_of("exclusion", model.window_length_),
        "device": device,
    }
    clear_cache()
    spent["scaling"], scaled = timed(lambda: [model.scaling_.apply(item) for item in some])
    samples = [item.samples for item in scaled]
    spent["retrieval"], found = timed(lambda: _searched(samples, settings, device), device)
    cut = [windows_of(item, window_length=model.window_length_, stride=model.stride_) for item in scaled]
    scorer = Scorer(model.backbone_, place)
    spent["network"], scores = timed(lambda: [scorer.launch(item) for item in cut], device)

    def explained(at: int) -> Any:
        posteriors = posteriors_of(scores[at].logits().double())
        prediction = aggregate(posteriors, found[at].support, temperature=0.1)
        return trace(some[at], cut[at], found[at], prediction, classes=model.classes_)

    def write() -> int:
        return write_tables(map(explained, range(n_channels)), folder / "parts", overwrite=True)

    write()
    spent["evidence_and_write"], _ = timed(write)
    parts = {name: seconds * (1 if name == "read" else more) for name, seconds in spent.items()}
    return parts | {"evidence_ms_per_channel": 1000 * spent["evidence_and_write"] / n_channels}


def _searched(samples: Sequence[Any], settings: dict[str, Any], device: str) -> list[Retrieval]:
    """As prediction asks: a GPU is given all at once, the CPU one after the other."""
    if device != "cpu":
        return cached_retrieve_many(samples, **settings)
    return [cached_retrieve_many([sample], **settings)[0] for sample in samples]


def network_flops(network: PatchTST) -> float:
    """Operations that the paper's network needs for one window of one variate: two for each product and sum.

    >>> from raxss.method.backbones import build_backbone
    >>> network_flops(build_backbone("patchtst", n_variates=1, window_length=1024, n_outputs=1)) / 1e6
    10.625024
    """
    n_tokens, width = network.positions.shape
    products = network.patch_length * width
    for layer in network.encoder:
        linear = [module for module in layer.modules() if isinstance(module, torch.nn.Linear)]
        products += sum(item.in_features * item.out_features for item in linear) + 2 * n_tokens * width
    return 2.0 * (n_tokens * products + network.head.in_features * network.head.out_features)


def _share_of_matmul(network: PatchTST, windows_per_second: float, device: str) -> dict[str, float]:
    """What the network computes in a second beside a large float32 product of the same machine."""
    n = 1536 if device == "cpu" else 8192
    matrix = torch.randn(n, n, generator=torch.Generator().manual_seed(SEED)).to(device)
    durations = [timed(lambda: matrix @ matrix, device)[0] for _ in range(8)]
    matmul, reached = 2 * n**3 / min(durations), windows_per_second * network_flops(network)
    return {
        "gflops_per_second": reached / 1e9,
        "matmul_gflops_per_second": matmul / 1e9,
        "share_of_matmul": reached / matmul,
    }


# A long channel ---------------------------------------------------------------------------------------------


def long_channel(
    device: str = "cpu",
    hours: float = 24.0,
    bank: str = "local",
    *,
    bank_size: int | None = None,
    window_length: int = WINDOW_LENGTH,
    stride: int = STRIDE,
) -> dict[str, Any]:
    """Seconds and peak memory of one channel with evidence, in a process of its own."""
    n_samples = pooled_samples(3600 * hours)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        tell(f"long: preparing one channel of {hours:g} h, {n_samples:,} pooled samples")
        prepared_folder(folder / "prepared", 1, n_samples, seed=SEED)
        model = barely_trained(device, window_length, stride)
        model.set_params(bank=bank, **({} if bank_size is None else {"bank_size": bank_size}))
        model.save_pretrained(folder / "model")
        root = Path(__file__).parents[1]
        paths = [str(root), str(root / "src"), os.environ.get("PYTHONPATH", "")]
        finished = subprocess.run(
            [sys.executable, "-m", "benchmarks.prediction", "child", str(folder), "--device", device],
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return {"hours": hours, **json.loads(finished.stdout)}


def _in_a_process_of_its_own(folder: Path, device: str) -> dict[str, Any]:
    """Predict what `long_channel` left there."""
    model = RAxSSClassifier.from_pretrained(folder / "model", device=device)
    before = _peak_gb()
    begin = time.perf_counter()
    seen: list[tuple[float, float]] = []  # seconds, share done
    with share_bar("predicting", 100, unit="%") as draw:

        def on_progress(share: float) -> None:
            seen.append((time.perf_counter() - begin, share))
            if draw is not None:
                draw(share)

        series = read_prepared(folder / "prepared", verify=True)
        write_tables(model.explain_each(series, on_progress=on_progress), folder / "why")
    seconds = time.perf_counter() - begin
    n_windows = len(windows_of(series[0], window_length=model.window_length_, stride=model.stride_))
    n_bank = min(model.bank_size, n_windows) if model.bank in ("local", "sampled") else n_windows
    searching = n_bank / (n_bank + PAIRS_A_SCORE)  # the share of all work that retrieval is taken for
    import pandas as pd

    summary = pd.read_parquet(folder / "why" / "summary.parquet")
    return {
        "device": device,
        "n_windows": n_windows,
        "bank": model.bank,
        "bank_windows": n_bank,
        "seconds": seconds,
        "windows_per_second": n_windows / seconds,
        "retrieval_seconds": next((at for at, share in seen if share >= searching), None),
        "peak_gb": _peak_gb(),
        "before_gb": before,
        "progress_reports": len(seen),
        "first_report_seconds": seen[0][0],
        "foretold_seconds": {f"{share:.0%}": _foretold(seen, share) for share in (0.1, 0.5, 0.9)},
        "evidence_bytes": sum(file.stat().st_size for file in (folder / "why").glob("*.parquet")),
        "warnings": list(summary["warnings"].iloc[0]),
    }


def _foretold(seen: list[tuple[float, float]], share: float) -> float | None:
    """How long it all was said to take when this share was done."""
    return next((at / done for at, done in seen if done >= share), None)


def _peak_gb() -> float:
    """The most that this process has held. Linux has it of this program alone; elsewhere its parent may count."""
    status = Path("/proc/self/status")
    if status.exists():
        held = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(held.split()[1]) * 1024 / 1e9
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9


# By hand ----------------------------------------------------------------------------------------------------


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure the part that was chosen, and print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=["recording", "long", "child"])
    parser.add_argument("folder", nargs="?", type=Path, help=argparse.SUPPRESS)  # of child
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--channels", type=int, default=100)
    parser.add_argument("--runs", type=int)
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--bank", default="local")
    parser.add_argument("--bank-size", type=int)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args(arguments)
    if given.what == "child":
        print(json.dumps(storage.json_ready(_in_a_process_of_its_own(given.folder, given.device))))
        return
    run: Callable[[], dict[str, Any]] = (
        partial(recording, given.device, n_channels=given.channels, n_runs=given.runs)
        if given.what == "recording"
        else partial(long_channel, given.device, given.hours, given.bank, bank_size=given.bank_size)
    )
    record = recorded({"recording": "prediction", "long": "long"}[given.what], given.device, run)
    if given.json:
        storage.write_json(given.json, record)
    print(json.dumps(storage.json_ready(record["results"]), indent=2))


if __name__ == "__main__":
    main()
