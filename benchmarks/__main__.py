"""Speed and memory, measured: ``python -m benchmarks PART [--json FILE]``.

    all         what `make bench` runs: every part that this machine can, in under half an hour on two cores
    report      RESULTS.md and docs/scaling.md from the results that are there; measures nothing

Every other part prints its tables, and writes its figures with date, hardware and versions where --json says.
`all` writes them to benchmarks/results/<machine>/ and makes the report from them; `scaling` with a FILE in there
writes docs/scaling.md anew.
"""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.common import RESULTS, machine_name, recorded, tell
from raxss._core import atomic as storage


@dataclass(frozen=True)
class Part:
    """Something that can be measured by itself.

    Attributes
    ----------
    run
        From device and settings to results.
    cpu_minutes, gpu_minutes
        How long it takes, about, on two cores and on a large GPU; None where it is not for that device.
    """

    what: str
    run: Callable[[str, argparse.Namespace], dict[str, Any]]
    cpu_minutes: float | None
    gpu_minutes: float | None


def _module(name: str) -> Any:
    """A module of the benchmarks, imported when its part runs."""
    return importlib.import_module(f"benchmarks.{name}")


def _network(device: str, settings: argparse.Namespace) -> dict[str, Any]:
    return dict(_module("network_cpu" if device == "cpu" else "network_gpu").run())


def _training(device: str, settings: argparse.Namespace) -> dict[str, Any]:
    return dict(_module("training").step_rate(device))


def _seed(device: str, settings: argparse.Namespace) -> dict[str, Any]:
    return dict(_module("training").one_seed(device, n_epochs=settings.epochs))


def _prediction(device: str, settings: argparse.Namespace) -> dict[str, Any]:
    return dict(_module("prediction").recording(device))


def _long(device: str, settings: argparse.Namespace) -> dict[str, Any]:
    return dict(_module("prediction").long_channel(device, settings.hours, settings.bank))


def _scaling(device: str, settings: argparse.Namespace) -> dict[str, Any]:
    return dict(_module("scaling").run(device))


def _only(name: str) -> Callable[[str, argparse.Namespace], dict[str, Any]]:
    """The run of a module without settings."""
    return lambda device, settings: dict(_module(name).run())


PARTS = {
    "retrieval": Part("retrieval on the CPU against torch, faiss and stumpy", _only("retrieval"), 15, None),
    "retrieval-gpu": Part("retrieval on the GPU against torch", _only("retrieval_gpu"), None, 1),
    "cases": Part("search among cases against torch, faiss and usearch", _only("cases"), 4, None),
    "network": Part("windows a second of the network alone", _network, 1, 1),
    "training": Part("windows a second of training against the plain loop", _training, 2, 1),
    "seed": Part("one seed of the paper", _seed, None, 3),
    "prediction": Part("a recording of 100 channels with evidence", _prediction, 1.5, 0.5),
    "long": Part("one channel of a whole day with evidence", _long, 5, 1),
    "bank": Part("how far the support of a bounded bank is from the exact one", _only("bank"), 0.5, None),
    "scaling": Part("cost against length, batch and channels", _scaling, 0.5, 1),
}


def main(arguments: list[str] | None = None) -> int:
    """Run the part that was chosen; the exit code is 1 where a part failed."""
    settings = _parsed(arguments)
    if settings.part == "report":
        _write_report(settings)
        return 0
    if settings.part == "all":
        return _run_all(settings)
    part, device = PARTS[settings.part], _device_for(settings)
    minutes = part.cpu_minutes if device == "cpu" else part.gpu_minutes
    tell(f"{settings.part}: {part.what}; on {machine_name(device)}, about {minutes or '?'} minutes")
    record = recorded(settings.part, device, lambda: part.run(device, settings))
    if settings.json:
        storage.write_json(settings.json, record)
    from benchmarks.telling import part_tables

    print(part_tables(settings.part, storage.json_ready(record["results"])))
    if settings.part == "scaling" and settings.json and settings.results in settings.json.parents:
        _write_page(settings)
    tell(f"{settings.part}: done in {record['seconds']:.0f} s")
    return 0


def _parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n" + "\n".join(f"  {name:15}{part.what}" for name, part in PARTS.items()),
    )
    parser.add_argument("part", choices=[*PARTS, "all", "report"], metavar="PART")
    parser.add_argument(
        "--json", type=_absolute, metavar="FILE", help="also write the figures of one part here"
    )
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--results", type=_absolute, default=RESULTS, metavar="FOLDER", help="of all and report"
    )
    parser.add_argument("--docs", type=Path, metavar="FOLDER", help="where scaling.md goes")
    parser.add_argument(
        "--without", action="append", choices=PARTS, default=[], help="leave a part out of all"
    )
    parser.add_argument("--epochs", type=int, default=50, help="of seed")
    parser.add_argument("--hours", type=float, default=24.0, help="of long")
    parser.add_argument("--bank", default="local", help="of long: local, sampled or series")
    return parser.parse_args(arguments)


def _absolute(text: str) -> Path:
    return Path(text).absolute()


def _device_for(settings: argparse.Namespace) -> str:
    """The GPU where there is one and the part can use it, unless one is chosen."""
    part, name = PARTS[settings.part], settings.part
    device = settings.device
    if device == "auto":
        device = "cuda" if part.gpu_minutes is not None and _has_gpu() else "cpu"
    if device == "cpu" and part.cpu_minutes is None and settings.device == "auto":
        raise SystemExit(f"{name} needs a CUDA device, and torch sees none here.")
    if device == "cuda" and (part.gpu_minutes is None or not _has_gpu()):
        raise SystemExit(
            f"{name} cannot run on a CUDA device here; leave --device out to see what it can do."
        )
    return str(device)


def _has_gpu() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def plan(has_gpu: bool) -> list[tuple[str, str, float]]:
    """What `all` runs: part, device, minutes; on the CPU everything that suits it, then the same on a GPU."""
    todo = [(name, "cpu", part.cpu_minutes) for name, part in PARTS.items()]
    todo += [(name, "cuda", part.gpu_minutes) for name, part in PARTS.items() if has_gpu]
    return [(name, device, minutes) for name, device, minutes in todo if minutes is not None]


def _run_all(settings: argparse.Namespace) -> int:
    """Each part in a process of its own, so that none inherits threads, memory or settings of another."""
    todo = [item for item in plan(_has_gpu()) if item[0] not in settings.without]
    if settings.device != "auto":
        todo = [item for item in todo if item[1] == settings.device]
    tell(f"{len(todo)} parts, about {sum(minutes for *_, minutes in todo):.0f} minutes:")
    for name, device, minutes in todo:
        tell(f"  {name:15}{device:6}{minutes:5.1f} min  {PARTS[name].what}")
    begin, took, failed = time.perf_counter(), dict[str, float](), list[str]()
    for name, device, _ in todo:
        place = settings.results / machine_name(device) / f"{name}.json"
        command = [sys.executable, "-m", "benchmarks", name, "--device", device, "--json", str(place)]
        command += ["--epochs", str(settings.epochs), "--hours", str(settings.hours), "--bank", settings.bank]
        since = time.perf_counter()
        if subprocess.run(command).returncode:
            failed.append(f"{name} on {device}")
        took[f"{name} on {device}"] = round(time.perf_counter() - since, 1)
    device = "cpu" if settings.device == "auto" else settings.device
    record = recorded("all", device, lambda: {"parts": took, "failed": failed})
    record["seconds"] = round(time.perf_counter() - begin, 1)
    storage.write_json(settings.results / machine_name(device) / "all.json", record)
    _write_report(settings)
    tell(f"all: {record['seconds'] / 60:.1f} minutes" + "".join(f"; FAILED: {item}" for item in failed))
    return 1 if failed else 0


def _write_report(settings: argparse.Namespace) -> None:
    from benchmarks import report

    report.write(settings.results)
    tell(f"the tables are in {settings.results.parent.name}/RESULTS.md")
    _write_page(settings)


def _write_page(settings: argparse.Namespace) -> None:
    from benchmarks import scaling_page

    docs = settings.docs or scaling_page.DOCS
    scaling_page.write(settings.results, docs)
    tell(f"how costs grow is in {docs.name}/scaling.md")


if __name__ == "__main__":
    sys.exit(main())
