"""Overview page of all studies.

    a folder with the folders of `raxss table` -> README.md, plots/systems.png, plots/critical-difference.png

The words are in overview.md.j2, the numbers in the tidy rows of the studies; about.md, written by hand, comes
first. Deterministic: the same folders give the same bytes.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote as in_link

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from raxss._core.atomic import output_lock, write_bytes
from raxss.benchmark.collect import Block, Folder, gather
from raxss.benchmark.pages.figures import png
from raxss.benchmark.pages.markdown import (
    NONE,
    TITLES,
    Markdown,
    difference,
    number,
    p_text,
    plain,
    render,
    table,
)
from raxss.benchmark.pages.page import TOO_RARE
from raxss.benchmark.pages.report import plot_systems
from raxss.benchmark.pages.tidy import part, wide
from raxss.benchmark.statistics import (
    CHANCE,
    plot_critical_difference,
    ranked,
)
from raxss.benchmark.systems import SYSTEMS

OURS, PARENT = "tuned", "sss"
ABOUT = "about.md"
PANELS_A_ROW = 3
#: Fact of a fit -> its title.
VERSIONS = {"python": "Python", "torch": "torch", "numpy": "numpy", "raxss": "raxss"}


def write_overview(results: Path | str) -> list[Path]:
    """Write the page about all studies of a folder, and its plots; returns the files, the page last."""
    results = Path(os.path.abspath(results))  # its name is in the commands that the page gives
    with output_lock(os.path.realpath(results)):
        contents = overview(results)
        for name, content in contents.items():
            write_bytes(results / name, content)
    return [results / name for name in contents]


def overview(results: Path) -> dict[str, bytes]:
    """File name -> content, of everything that `write_overview` writes."""
    folders, quotes = gather(results)
    blocks = [block for folder in folders for block in folder.blocks]
    plain, doubled = _each_dataset_once([value for value in blocks if value.kind == "main"])
    main = [block for block in plain if OURS in block.expected[0]] or plain
    further = [block for block in plain if block not in main]  # of studies that compare other systems
    scores = {block.dataset: {name: block.mean(name) for name in block.systems} for block in main}
    ranks, unranked = ranked(pd.DataFrame(scores).T)
    drawable = any(block.means()["value"].notna().any() for block in main)
    plots = {"plots/systems.png": png(plot_blocks, main)} if drawable else {}
    if ranks is not None:
        plots["plots/critical-difference.png"] = png(plot_critical_difference, ranks)
    about = results / ABOUT
    page = render(
        "overview.md.j2",
        about=Markdown(about.read_text("utf-8").strip()) if about.is_file() else None,
        folder=results.name,
        matrix=_matrix(main),
        main=[_about_block(entry) for entry in main],
        further=[_about_block(entry) for entry in further],
        further_matrix=_matrix(further),
        doubled=doubled,
        plots=list(plots),
        missing=[text for folder in folders for text, _ in folder.missing],
        n_missing=sum(count for folder in folders for _, count in folder.missing),
        n_expected=sum(folder.n_expected for folder in folders),
        against=_against_parent(main),
        standing=_standing(main),
        ours=OURS,
        parent=PARENT,
        ranks=ranks,
        n_main=len(main),
        ranked="" if ranks is None else ", ".join(f"{name} {rank:.2f}" for name, rank in ranks.ranks.items()),
        unranked=", ".join(unranked),
        p_friedman="" if ranks is None else p_text(ranks.p_friedman),
        changed=_changed([value for value in blocks if value.kind == "changed"]),
        variants=_variants([value for value in blocks if value.kind == "variants"]),
        shuffled=[_shuffled(value) for value in blocks if value.kind == "shuffled"],
        quotes=quotes,
        places=_places(folders),
        commands=_commands(folders, results.name),
        folders=folders,
    )
    return plots | {"README.md": page.encode()}


# Systems on datasets ------------------------------------------------------------------------------------------


def _each_dataset_once(blocks: Sequence[Block]) -> tuple[list[Block], list[str]]:
    """Of several studies of one dataset the one with the most fits; and sentences about the others."""
    best: dict[str, Block] = {}
    for block in blocks:
        if block.dataset not in best or len(block.fits) > len(best[block.dataset].fits):
            best[block.dataset] = block
    others = [
        f"{block.folder} has {block.dataset} too ({len(block.fits)} fits); here it is from "
        f"{best[block.dataset].folder} ({len(best[block.dataset].fits)} fits)."
        for block in blocks
        if block is not best[block.dataset]
    ]
    return list(best.values()), others


def _systems(blocks: Iterable[Block]) -> list[str]:
    """Built-in systems in their order, then the studies' own."""
    named = dict.fromkeys(name for block in blocks for name in (*block.expected[0], *block.systems))
    return [name for name in SYSTEMS if name in named] + [name for name in named if name not in SYSTEMS]


def _matrix(blocks: Sequence[Block]) -> Markdown | None:
    """Mean ± deviation of each block's headline, the best in bold."""
    if not blocks:
        return None
    best = [np.nanmax([block.mean(name) for name in block.systems], initial=-np.inf) for block in blocks]
    rows = [
        [system, *(_entry(block, system, top) for block, top in zip(blocks, best, strict=True))]
        for system in _systems(blocks)
    ]
    return table(["system", *map(_column, blocks)], rows)


def _column(block: Block) -> str:
    return f"[{plain(block.dataset)}]({in_link(block.folder)}/README.md)<br>{TITLES[block.headline]}"


def _entry(block: Block, system: str, best: float) -> Markdown | str:
    """Entry of the matrix; a missing result has its reason."""
    row = block.figure(system)
    names, n_seeds = block.expected
    if row is None:
        return "failed" if system in block.failed else "not run" if system in names else NONE
    mean, deviation = row["value"], row["sd"]
    if np.isnan(mean):
        return "does not exist"
    text = number(mean, block.headline)
    text = f"**{text}**" if mean >= best else text
    text += "" if np.isnan(deviation) else f" ± {number(deviation, block.headline)}"
    n_done = int(row["n_seeds"])
    return Markdown(text if n_done >= n_seeds else f"{text} ({n_done} of {n_seeds})")


def _about_block(block: Block) -> dict[str, Any]:
    """Metric, split and test series of a column."""
    splits = "; ".join(item for item in block.fits["split"].unique() if item)
    n_test = block.fits.drop_duplicates("seed")["n_test"]
    return {
        "name": block.dataset,
        "metric": TITLES[block.headline].removesuffix(" %"),
        "split": splits or "not told",
        "n_test": int(n_test.sum()) if len(n_test) else 0,
        "n_seeds": block.fits["seed"].nunique(),
        "leaky": bool((block.fits["leaky"] == 1).any()),
    }


# How ours stands ----------------------------------------------------------------------------------------------


def _against_parent(blocks: Sequence[Block]) -> Markdown | None:
    rows = []
    for block in blocks:
        found = block.difference(OURS, PARENT)
        if found is not None:
            figures = (number(block.mean(item), block.headline) for item in (OURS, PARENT))
            metric = TITLES[block.headline]
            rows.append(
                [block.dataset, metric, *figures, difference(found, block.headline), p_text(found["p_holm"])]
            )
    return table(["dataset", "figure", OURS, PARENT, "difference", "p"], rows) if rows else None


def _standing(blocks: Sequence[Block]) -> list[str]:
    """Where ours is at the top, and the systems above it elsewhere."""
    found = []
    for block in blocks:
        mean = block.mean(OURS)
        if np.isnan(mean):
            found.append(f"{block.dataset}: {OURS} has no result.")
            continue
        metric, value = TITLES[block.headline].removesuffix(" %"), number(mean, block.headline)
        by_mean = sorted(block.systems, key=lambda name: -block.mean(name))
        rows = {name: row for name in by_mean if (row := block.difference(name, OURS)) is not None}
        above = [name for name in by_mean if block.mean(name) > mean]
        if not above:
            best = f"{block.dataset}: {OURS} has the highest mean {metric}, {value}."
            close = [f"{name} {_by(block, name)}" for name, row in rows.items() if row["high"] >= 0]
            found.append(f"{best} Not told apart from it: {'; '.join(close)}." if close else best)
            continue
        named = "; ".join(f"{name} by {_by(block, name)}" for name in above)
        clear = [name for name in above if name in rows and rows[name]["low"] > 0]
        excluded = (
            "the 95 % interval excludes 0 for " + ", ".join(clear) if clear else "no 95 % interval excludes 0"
        )
        found.append(
            f"{block.dataset}: {OURS} is not at the top ({metric} {value}). Above it: {named}; {excluded}."
        )
    return found


def _by(block: Block, system: str) -> str:
    found = block.difference(system, OURS)
    if found is None:
        return number(block.mean(system) - block.mean(OURS), block.headline, "+")
    return difference(found, block.headline)


# Other studies ------------------------------------------------------------------------------------------------


def _changed(blocks: Sequence[Block]) -> dict[str, Any] | None:
    """Data that was joined or cut."""
    if not blocks:
        return None
    return {
        "matrix": _matrix(blocks),
        "about": [(block.dataset, block.data) for block in blocks],
        "against": _against_parent(blocks),
        "standing": _standing(blocks),
    }


def _variants(blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """For each base its values, and the differences of its variants.

    A variant with another base in another study is in the table of each, for that study alone.
    """
    about: dict[str, dict[str, dict[int, str]]] = {}  # reference -> variant -> k-th block -> what differs
    for k, block in enumerate(blocks):
        for system, (base, description) in block.systems.items():
            if base:
                reference = base if base in block.systems else OURS
                about.setdefault(reference, {}).setdefault(system, {})[k] = description
    found = []
    for reference, named in sorted(about.items(), key=lambda entry: entry[0] != OURS):
        own = [k for k, item in enumerate(blocks) if not np.isnan(item.mean(reference))]
        if not own:
            continue
        header = ["system", *(_column(blocks[k]) for k in own), "what"]
        rows: list[list[object]] = [[reference, *(_entry(blocks[k], reference, np.inf) for k in own), ""]]
        verdicts: dict[str, list[str]] = {"above": [], "below": [], "neither": []}
        for name, differs in named.items():
            texts = []
            for k in own:
                block = blocks[k]
                compared = block.difference(name, reference) if k in differs else None
                texts.append(NONE if compared is None else difference(compared, block.headline))
                if compared is not None:
                    side = "above" if compared["low"] > 0 else "below" if compared["high"] < 0 else "neither"
                    verdicts[side].append(f"{name} on {block.dataset}")
            what = "; ".join(f"{blocks[k].dataset}: {text}" for k, text in differs.items())
            rows.append(
                [name, *texts, what if len(set(differs.values())) > 1 else next(iter(differs.values()))]
            )
        found.append({"reference": reference, "table": table(header, rows), "verdicts": verdicts})
    return found


def _shuffled(block: Block) -> dict[str, Any]:
    by_chance = part(block.rows, reference=CHANCE)
    means = by_chance["value"] + 0.5
    found = by_chance.loc[by_chance["p_holm"] < TOO_RARE, "system"]
    return {
        "name": block.dataset,
        "folder": block.folder,
        "n_systems": len(by_chance),
        "mean": f"{means.mean():.3f}",
        "deviation": f"{means.std(ddof=1):.3f}" if len(means) > 1 else NONE,
        "least": f"{means.min():.3f}",
        "most": f"{means.max():.3f}",
        "judged": bool(by_chance["p_holm"].notna().any()),
        "found": ", ".join(found),
    }


# Where and how ------------------------------------------------------------------------------------------------


def _places(folders: Sequence[Folder]) -> Markdown | None:
    """Fits, hours and versions by folder and device."""
    rows = []
    for folder in folders:
        by_device: dict[str, list[Mapping[str, Any]]] = {}
        for fact in folder.facts:
            by_device.setdefault(str(fact.get("device", "not told")), []).append(fact)
        for device, own in sorted(by_device.items()):
            hours = sum(float(item.get("seconds", 0)) for item in own) / 3600
            sources = {str(item["source"]) for item in own if "source" in item}
            rows.append([folder.name, device, len(own), f"{hours:.2f}", _versions(own), len(sources)])
    header = ["folder", "device", "fits", "hours", "versions", "states of the code"]
    return table(header, rows) if rows else None


def _versions(facts: Sequence[Mapping[str, Any]]) -> str:
    found = {
        title: sorted({str(fact[name]) for fact in facts if name in fact}) for name, title in VERSIONS.items()
    }
    return ", ".join(f"{title} {' or '.join(versions)}" for title, versions in found.items() if versions)


def _commands(folders: Sequence[Folder], results: str) -> list[tuple[str, str, Markdown]]:
    """The command that makes a folder again."""
    found = []
    for folder in folders:
        place = f"{results}/{folder.name}"
        seeds = "" if folder.all_seeds else f" --seeds {','.join(map(str, folder.seeds))}"
        on_gpu = any(fact.get("device", "cpu") != "cpu" for fact in folder.facts)
        command = f"`raxss table {place}/study.toml --root data --out {place}{seeds}"
        command += " --device cuda`" if on_gpu else "`"
        missing = "its study, or a file that it names, is not beside it"
        found.append((folder.name, folder.title, Markdown(command if folder.has_study else missing)))
    return found


# Plots --------------------------------------------------------------------------------------------------------


def plot_blocks(blocks: Sequence[Block]) -> Axes:
    """A panel for each dataset: seeds of each system, their mean, and its interval; returns the first panel."""
    systems = _systems(blocks)
    n_columns = min(PANELS_A_ROW, len(blocks))
    n_rows = -(-len(blocks) // n_columns)
    size = (2.0 + 3.1 * n_columns, n_rows * (0.9 + 0.25 * len(systems)))
    panels = Figure(figsize=size, layout="constrained").subplots(n_rows, n_columns, squeeze=False).ravel()
    for place, (ax, block) in enumerate(zip(panels, blocks, strict=False)):
        figures = block.means().rename(columns={"value": "_mean", "low": "_low", "high": "_high"})
        view = wide(figures, ["system"], values=("_mean", "_low", "_high"))
        plot_systems(
            block.fits, view.set_index("system").reindex(systems).reset_index(), block.headline, ax=ax
        )
        ax.set_title(" ".join(block.dataset.split()), fontsize=10).set_parse_math(False)
        if place % n_columns:
            ax.set_yticklabels([])
    for ax in panels[len(blocks) :]:
        ax.set_axis_off()
    first: Axes = panels[0]
    return first
