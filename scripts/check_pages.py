"""Check that the pages, tables and plots under results/ come out of the committed data, byte for byte.

    python scripts/check_pages.py [results] [--only overview study reweighting robustness faithfulness scripts]

Nothing is fitted and nothing is written below the folder. What comes out of what:

    overview      README.md, plots                   from the tables of all studies
    study         *.csv, README.md, plots            from the predictions of each study
    reweighting   *.csv, README.md, plots            from its own tables, since its evaluations are not kept
    robustness    *.csv, README.md, plots            from its evaluations
    faithfulness  *.csv, README.md, page.html, plots from its own tables; means of exactly half a unit of the last
                  digit shown may be rounded the other way, because tables have ten digits
    scripts       README.md of chance, doubt and ds003498-clip, from their tables
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pandas as pd

from raxss.benchmark.analyses import faithfulness_report
from raxss.benchmark.analyses.evaluation import EvaluatedRun
from raxss.benchmark.analyses.faithfulness_control import CONTROLS
from raxss.benchmark.analyses.reweighting_analysis import (
    ALONE,
    CHOSEN,
    OWN,
    PLAIN,
    PREFIXES,
    SETTING,
    Reweighting,
)
from raxss.benchmark.analyses.robustness import Robustness
from raxss.benchmark.packed import facts_of, read_run, runs_in
from raxss.benchmark.pages.files import csv_of, read_table
from raxss.benchmark.pages.overview import overview
from raxss.benchmark.pages.report import write_report
from raxss.benchmark.pages.tidy import tidy
from raxss.benchmark.rerun import committed_run, committed_table
from raxss.benchmark.result import RunResult
from raxss.benchmark.study import Study
from raxss.explain.faithfulness.running import Parts

Files = dict[str, bytes]
Frame = pd.DataFrame


def files_in(folder: Path) -> Files:
    """Name -> content of everything in a folder."""
    return {
        item.relative_to(folder).as_posix(): item.read_bytes()
        for item in sorted(folder.rglob("*"))
        if item.is_file()
    }


def written(write: Callable[[Path], Any]) -> Files:
    """What a function writes to a folder."""
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        return files_in(Path(folder))


def cells_of(folder: Path) -> tuple[list[RunResult], dict[Any, dict[str, Any]]]:
    """The results behind the table of a study, in its order, and what was noted beside each."""
    results, facts = [], {}
    for row in committed_table(folder).to_dict("records"):
        item, noted = committed_run(folder, row)
        results.append(item)
        chosen = row["seconds_of_choice"]
        facts[item.dataset, item.system, item.seed] = noted | (
            {"seconds_of_choice": chosen} if chosen == chosen else {}
        )
    return results, facts


# What is made anew --------------------------------------------------------------------------------------------


def of_overview(results: Path) -> Iterator[tuple[Path, Files]]:
    """The page about all studies."""
    yield results, overview(results)


def of_study(results: Path) -> Iterator[tuple[Path, Files]]:
    """Tables, plots and page of each study, from its predictions."""
    for place in sorted(results.glob("*/results.csv")):
        folder = place.parent
        found, facts = cells_of(folder)
        study = Study.read(folder / "study.toml")
        summary = read_table(csv_of(folder / "summary.csv"))
        headlines = dict(zip(summary["dataset"], summary["headline"], strict=True))
        variants = {name: item for name, item in study.compared().items() if item.base is not None}
        about = {"study_name": study.name, "headlines": headlines, "variants": variants}
        yield folder, written(lambda out: write_report(found, facts=facts, errors=[], out=out, **about))  # noqa: B023


@dataclass(frozen=True, kw_only=True)
class FromTables(Reweighting):
    """Reweighting whose rows were read from its tables."""

    known: Any = None

    def rows(self, runs: Any, *, n_resamples: int = 0) -> Frame:
        """As read."""
        return self.known


def reweighting_rows(place: Path) -> Frame:
    """The tidy table behind the four tables of a reweighting."""
    tables = {item: pd.read_csv(place / f"{item}.csv", dtype={"exclusion": str, "fold": str})
              for item in ("answers", "comparisons", "without-weights", "chosen")}  # fmt: skip
    answers, compared, without, chosen = tables.values()
    fit = ["dataset", "system", "seed", "fold", *SETTING]
    metrics = [name for name in answers if name not in fit]
    rows = [{name: item[name] for name in fit} | {"metric": metric, "value": item[metric]}
            for item in answers.to_dict("records") for metric in metrics]  # fmt: skip
    at = ["dataset", "system", "metric", *SETTING]
    for item in compared.to_dict("records"):
        about = {name: item[name] for name in at}
        rows.append(about | {"twin": OWN, "value": item["value"]})
        for (twin, reference), prefix in PREFIXES.items():
            found = {name: item[f"{prefix}{name}"] for name in ("low", "high", "p", "p_holm")}
            found |= {"value": item[f"{prefix}difference"], "twin": twin, "reference": reference}
            rows.append(about | found | {name: item[name] for name in ("n_seeds", "n_groups")})
    for item in without.to_dict("records"):
        plain = item["what"] == ALONE and item["difference"] != item["difference"]
        about = {name: item[name] for name in (*at, "what")} | ({"what": PLAIN} if plain else {})
        rows.append(about | {"value": item["value"]})
        if not plain:
            kept = {name: item[name] for name in ("low", "high", "p", "p_holm", "n_seeds", "n_groups")}
            rows.append(about | {"reference": PLAIN, "value": item["difference"]} | kept)
    for item in chosen.to_dict("records"):
        about = {name: item[name] for name in fit} | {"what": CHOSEN}
        rows.append(about | {"metric": item["metric"], "value": item["test"]})
        rows.append(about | {"metric": f"validation_{item['metric']}", "value": item["validation"]})
    return tidy(rows)


def of_reweighting(results: Path) -> Iterator[tuple[Path, Files]]:
    """Tables, plots and page of each reweighting, from its tables."""
    for place in sorted(results.glob("*/reweighting")):
        found, _ = cells_of(place.parent)
        rows = reweighting_rows(place)
        systems = list(dict.fromkeys(rows["system"]))
        fits = [
            EvaluatedRun(result=item, evaluations=())
            for system in systems
            for item in found
            if item.system == system
        ]
        name = Study.read(place.parent / "study.toml").name
        devices = re.findall(r"^Device: (.*)\.$", (place / "README.md").read_text("utf-8"), re.MULTILINE)
        facts = [{"device": device} for device in devices]
        analysis = FromTables(known=rows)
        yield (
            place,
            written(
                lambda out: analysis.write(fits, facts=facts, errors=[], out=out, study_name=name)  # noqa: B023
            ),
        )


def of_robustness(results: Path) -> Iterator[tuple[Path, Files]]:
    """Tables, plots and page of each robustness, from its evaluations."""
    for place in sorted(results.glob("*/robustness")):
        runs = runs_in(place)
        at = ["dataset", "system", "seed", "kind", "level"]
        answers = read_table(csv_of(place / "answers.csv"))[at].astype(str)
        order = {key: k for k, key in reversed(list(enumerate(answers.itertuples(index=False, name=None))))}

        def key(run: EvaluatedRun, order: dict[Any, int] = order) -> int:
            settings, result = run.evaluations[0].settings, run.result
            about = (result.dataset, result.system, result.seed, settings["kind"], f"{settings['level']:g}")
            return order[tuple(map(str, about))]

        fits = sorted((read_run(run, EvaluatedRun) for run in runs), key=key)
        facts = [facts_of(run) for run in runs]
        name = Study.read(place.parent / "study.toml").name
        yield (
            place,
            written(
                lambda out: Robustness().write(fits, facts=facts, errors=[], out=out, study_name=name)  # noqa: B023
            ),
        )


def of_faithfulness(results: Path) -> Iterator[tuple[Path, Files]]:
    """Tables, plots and pages of each faithfulness, from its tables; and the index."""
    for place in sorted(results.glob("faithfulness/*/verdict.json")):
        folder = place.parent
        tables = {item: pd.read_csv(folder / f"{item}.csv", keep_default_na=False, na_values=[""])
                  for item in ("measures", "summary", "curves", "features")}  # fmt: skip
        text = (folder / "README.md").read_text("utf-8")
        found: dict[str, Parts] = {}
        for name, about in json.loads(place.read_text("utf-8"))["about"].items():
            found[name] = parts_of(name, about, tables["measures"], text)
        controls = {name: found.pop(name) for name in CONTROLS if name in found}
        title = re.match(r"# (.*): how far can", text)
        assert title is not None, folder
        rows = faithfulness_rows(tables)
        with patch.object(faithfulness_report, "rows_of", lambda _: rows):  # noqa: B023
            yield folder, written(
                lambda out: faithfulness_report.write_faithfulness(
                    found, out=out, title=title[1], controls=controls  # noqa: B023
                )
            )  # fmt: skip
    index = results / "faithfulness"

    def write(out: Path) -> None:
        shutil.copytree(index, out, dirs_exist_ok=True)
        faithfulness_report.write_index(out)

    yield index, {"README.md": written(write)["README.md"]}


def faithfulness_rows(tables: dict[str, Frame]) -> Frame:
    """The tidy table behind the tables of a faithfulness."""
    names = {"model": "system", "measure": "metric", "mean": "value"}
    rows = [tables[item].rename(columns=names) for item in ("measures", "summary")]
    for item, at, metrics in (
        ("curves", [*faithfulness_report.CURVE, "low", "high"], ["share", "seconds", "score"]),
        ("features", faithfulness_report.FEATURE, ["r2", "width"]),
    ):
        table = tables[item].rename(columns=names)
        rows += [table[["system", *at]].assign(metric=metric, value=table[metric]) for metric in metrics]
    return tidy(pd.concat(rows, ignore_index=True))


def parts_of(name: str, about: dict[str, Any], measures: Frame, page: str) -> Parts:
    """As much of what probes found as tables and page tell: series, and why some have no order."""
    own = measures[measures["model"] == name].drop_duplicates("series")
    series = [{"name": item, "group": group} for item, group in zip(own["series"], own["group"], strict=True)]
    missing: list[dict[str, Any]] = [{"missing": {}} for _ in series]
    section = page.partition(f"\n## {name}: ")[2].partition("\n## ")[0]
    for order, why, count in re.findall(
        r"- There is no order by (\w+): (.*) \((\d+) of \d+ series\)\.", section
    ):
        for item in missing[: int(count)]:
            item["missing"][order] = why
    return Parts(series=series, by_series={"deletion": missing}, of_all={}, about=about)


def of_scripts(results: Path) -> Iterator[tuple[Path, Files]]:
    """Pages that scripts made."""
    sys.path.insert(0, str(Path(__file__).parent))
    given = {"chance": ("measure_chance", ["--root", "-", "--study", str(results / "cinc2017-af-shuffled")]),
             "doubt": ("measure_doubt", ["--root", "-", "--datasets"])}  # fmt: skip
    for folder, (script, arguments) in given.items():

        def write(out: Path, folder: str = folder, script: str = script, args: Any = arguments) -> None:
            shutil.copytree(results / folder, out, dirs_exist_ok=True)
            with patch.object(sys, "argv", [script, "--out", str(out), *args]):
                importlib.import_module(script).main()

        yield results / folder, {"README.md": written(write)["README.md"]}
    clip = results / "faithfulness" / "ds003498-clip"
    areas, ranks = (pd.read_csv(clip / item, keep_default_na=False, na_values=[""])
                    for item in ("areas.csv", "ranks.csv"))  # fmt: skip
    about = (clip / "about.md").read_text("utf-8")
    yield clip, {"README.md": importlib.import_module("measure_marks").page(areas, ranks, about).encode()}


KINDS = {
    "overview": of_overview,
    "study": of_study,
    "reweighting": of_reweighting,
    "robustness": of_robustness,
    "faithfulness": of_faithfulness,
    "scripts": of_scripts,
}


def first_difference(old: bytes, new: bytes) -> str:
    """The first line of a text that differs, as it was and as it is."""
    try:
        pairs = zip(old.decode().splitlines(), new.decode().splitlines(), strict=False)
    except UnicodeDecodeError:
        return "    (an image)"
    return next((f"    - {a[:200]}\n    + {b[:200]}" for a, b in pairs if a != b), "    (one is longer)")


def only_ties(old: bytes, new: bytes) -> bool:
    """Whether two texts differ in the last digit of some numbers alone, by one: means that lie between two."""
    try:
        texts = old.decode(), new.decode()
    except UnicodeDecodeError:
        return False
    parts = [re.split(r"(\d+\.\d+)", text) for text in texts]
    if len(parts[0]) != len(parts[1]) or parts[0][::2] != parts[1][::2]:
        return False
    pairs = zip(parts[0][1::2], parts[1][1::2], strict=True)
    return all(
        len(a) == len(b) and abs(int(a.replace(".", "")) - int(b.replace(".", ""))) <= 1 for a, b in pairs
    )


def main() -> None:
    """Check everything, and say what differs; exit code 1 if anything does."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("results", type=Path, nargs="?", default=Path("results"))
    parser.add_argument("--only", nargs="*", choices=list(KINDS), default=list(KINDS))
    given = parser.parse_args()
    n_same = n_tied = n_other = 0
    for kind in given.only:
        for folder, files in KINDS[kind](given.results):
            for name, content in files.items():
                place = folder / name
                if place.exists() and place.read_bytes() == content:
                    n_same += 1
                    continue
                if kind == "faithfulness" and place.exists() and only_ties(place.read_bytes(), content):
                    n_tied += 1
                    continue
                n_other += 1
                line = first_difference(place.read_bytes(), content) if place.exists() else "    (not there)"
                print(f"{kind}: {place}\n{line}", flush=True)
    print(f"{n_same} files are the same, {n_tied} but for ties of the last digit, {n_other} are not.")
    sys.exit(1 if n_other else 0)


if __name__ == "__main__":
    main()
