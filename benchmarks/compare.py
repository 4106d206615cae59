"""Speed of two checkouts side by side: the goals of RESULTS.md, old and new in turn, each in a process of its own.

    python -m benchmarks.compare OLD [NEW] --device cpu --rounds 5 --parts retrieval training recording

NEW is this checkout by default. Median, smallest and largest value of the rounds are printed, and the ratio of the
medians. A change is not slower if its median lies within the spread of the old one against itself. `seed` is one
seed of the paper's size and `long` the memory for a channel of --hours; both take minutes a round.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

CHILD = """
import json, statistics, sys, time
tree, part, device, channels, epochs, hours = sys.argv[1:]
sys.path[:0] = [tree, tree + "/src"]
import raxss
assert raxss.__file__.startswith(tree), raxss.__file__
from benchmarks import prediction, training
if part == "retrieval":
    import numpy as np, torch
    samples = np.random.default_rng(0).normal(size=200_000).cumsum()
    def seconds():
        begin = time.perf_counter()
        raxss.retrieve(samples, window_length=1024, stride=5, n_neighbors=10, device=device)
        return time.perf_counter() - begin
    seconds()
    found = {"retrieval, s": statistics.median(seconds() for _ in range(9))}
elif part == "training":
    task = training.Task.of(560, (1 if device == "cpu" else 256) * 8192, 1024, device)
    found = {"training, windows/s": training._our_rate(task, 8192)}
elif part == "recording":
    found = {"recording with evidence, s": prediction.recording(device, n_channels=int(channels))["seconds"]}
elif part == "seed":
    found = {"one seed, s": training.one_seed(device, n_epochs=int(epochs))["seconds"]}
else:
    found = {"long channel, " + name: value for name, value in prediction.long_channel(device, float(hours)).items()
             if isinstance(value, (int, float)) and name != "hours"}
print(json.dumps(found))
"""

PARTS = ("retrieval", "training", "recording", "seed", "long")


def measured(tree: Path, part: str, settings: argparse.Namespace, cache: Path) -> dict[str, float]:
    """Figures of one part of a checkout, from a process of its own with kernels that were compiled before."""
    environment = os.environ | {"RAXSS_CACHE": "off", "RAXSS_COMPILED": str(cache)}
    sizes = [str(settings.channels), str(settings.epochs), str(settings.hours)]
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(tree), part, settings.device, *sizes]
    run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    found: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return found


def comparison(figure: str, sides: dict[str, list[float]]) -> str:
    """Medians and spreads of the old and the new checkout, and their ratio, on one line."""
    middle = {name: statistics.median(values) for name, values in sides.items()}
    spread = {name: f"{min(values):.5g} to {max(values):.5g}" for name, values in sides.items()}
    return (
        f"{figure}: old {middle['old']:.5g} ({spread['old']}), new {middle['new']:.5g} ({spread['new']}), "
        f"new/old {middle['new'] / middle['old']:.3f}"
    )


def main() -> None:
    """Measure, and print a line a figure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path, nargs="?", default=Path(__file__).parents[1])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:3])
    parser.add_argument("--channels", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=50)
    parser.add_argument("--hours", type=float, default=24.0)
    settings = parser.parse_args()
    trees = {"old": settings.old.resolve(), "new": settings.new.resolve()}
    with tempfile.TemporaryDirectory() as folder:
        for part in settings.parts:
            figures: dict[str, dict[str, list[float]]] = {}
            for turn in range(settings.rounds):
                for name, tree in trees.items():
                    for figure, value in measured(tree, part, settings, Path(folder) / name).items():
                        figures.setdefault(figure, {}).setdefault(name, []).append(value)
                print(f"{part}: round {turn + 1} of {settings.rounds}", file=sys.stderr, flush=True)
            for figure, sides in figures.items():
                print(comparison(figure, sides), flush=True)


if __name__ == "__main__":
    main()
