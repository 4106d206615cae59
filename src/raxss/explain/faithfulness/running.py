"""Runner of all faithfulness probes: of one series, or of many, resumable.

    ModelAdapter, series -> a draw of them -> each probe of each series -> DIR/parts/<hash>/<probe>/<series>.json
        -> Parts: results of all probes

The hash is of the model, the series and the settings: what is there is not done again, and what belongs to another
model is left alone.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray

from raxss._core.atomic import canonical_hash, json_ready, write_text
from raxss._core.jobs.local import threads_limited
from raxss._core.progress import progress_bar
from raxss._core.store import computed_once
from raxss.data.series import Series
from raxss.errors import ConfigError, one_of
from raxss.explain.evidence import safe_name
from raxss.explain.faithfulness.context_moved import moved_context
from raxss.explain.faithfulness.counterfactual import replaced_windows, smallest_flips
from raxss.explain.faithfulness.deletion import (
    CONTRIBUTION,
    N_RANDOM,
    N_STEPS,
    OCCLUSION,
    ORDERS,
    RANDOM,
    Deleted,
    delete_and_insert,
)
from raxss.explain.faithfulness.linear_probing import held_features
from raxss.explain.faithfulness.localisation import located
from raxss.explain.faithfulness.model_adapter import NO_LAYERS, ModelAdapter, WindowAttribution, scrambled
from raxss.explain.faithfulness.perturbation import BASELINES
from raxss.explain.faithfulness.randomisation import (
    layers_from_the_top,
    randomised_network,
    randomised_retrieval,
)
from raxss.explain.faithfulness.stability import changed_a_little
from raxss.method.backbones.mixture import Mixture

REVISION = 2  # raised where the same settings came to mean other numbers
DELETION, COUNTERFACTUAL, STABILITY, LOCALISATION, CONTEXT = OF_A_SERIES = (
    "deletion",
    "counterfactual",
    "stability",
    "localisation",
    "context",
)
RETRIEVAL, NETWORK, FEATURES = OF_ALL = ("retrieval", "network", "features")
PROBES = (*OF_A_SERIES, *OF_ALL)
THREADS_BESIDE_A_GPU = 4


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Probes to run, and on how many series."""

    n_series: int | None = 40  # at most; drawn at random, the classes in turn; None: all
    seed: int = 69421
    probes: tuple[str, ...] = PROBES
    n_steps: int = N_STEPS  # of deletion curves
    n_random: int = N_RANDOM

    def __post_init__(self) -> None:
        for probe in self.probes:
            one_of("probes", probe, PROBES)
        for name in ("n_series", "n_steps", "n_random"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} must be at least 1, got {value}.")


@dataclass(frozen=True, eq=False, kw_only=True)
class Parts:
    """Results of all probes."""

    series: list[dict[str, Any]]  # of each: name, group, label, seconds, predicted, probability, n_windows
    by_series: dict[str, list[Any]]  # probe -> one result per series; None where it does not apply
    of_all: dict[str, Any]  # probe -> its result
    about: dict[str, Any] = field(default_factory=dict)  # name of the model, classes, settings of the probes

    @property
    def groups(self) -> list[Hashable]:
        """Group of each series; intervals resample groups."""
        return [item["group"] for item in self.series]


def drawn(series: Sequence[Series], n_series: int | None, *, seed: int) -> list[Series]:
    """So many series at random, the classes in turn, in the order they had.

    Examples
    --------
    >>> many = [Series([0.0], label="ab"[k > 7], name=str(k)) for k in range(10)]
    >>> [one.name for one in drawn(many, 4, seed=0)], len(drawn(many, None, seed=0))
    (['4', '6', '8', '9'], 10)
    """
    if n_series is None or n_series >= len(series):
        return list(series)
    order = np.random.default_rng(seed).permutation(len(series)).tolist()
    by_label: dict[str, list[int]] = {}
    for place in order:
        by_label.setdefault(str(series[place].label), []).append(place)
    turns = [(rank, label, place) for label, some in by_label.items() for rank, place in enumerate(some)]
    return [series[place] for place in sorted(place for *_, place in sorted(turns)[:n_series])]


def run_probes(
    adapter: ModelAdapter,
    series: Sequence[Series],
    out: Path | str,
    *,
    plan: Plan | None = None,
    truth: Mapping[str, NDArray[np.bool_]] | None = None,
    event_class: Any = None,
    other: ModelAdapter | None = None,
    about: Mapping[str, Any] | None = None,
    quiet: bool = False,
) -> Parts:
    """Run the probes of a plan on series that the model was not trained on, as far as results are not there yet.

    For localisation, ``truth`` has by name of a series the samples ``(n_samples,)`` where something is known to
    have happened, and ``event_class`` the class that this is evidence for (default: that predicted of each series).
    ``other`` is the same system trained with another seed, for stability; ``about`` has more facts about the model.
    """
    plan = plan or Plan()
    chosen = drawn(series, plan.n_series, seed=plan.seed)
    if not chosen:
        raise ConfigError("there are no series to probe; give one at least.")
    probing = _Probing(adapter, chosen, plan, truth or {}, event_class, other)
    home = Path(out) / "parts" / probing.hash
    write_text(Path(out) / "parts" / ".gitignore", "*\n")  # they can be made again
    label = f"{about['model']}: " if about and "model" in about else ""
    # beside a GPU more CPU threads do not help; None is torch's default
    on_cpu = adapter.device.type == "cpu"
    n_threads = None if on_cpu else min(torch.get_num_threads(), THREADS_BESIDE_A_GPU)
    with threads_limited(n_threads), progress_bar(unit="series", quiet=quiet) as bar:
        by_series = {}
        for probe in (item for item in OF_A_SERIES if item in plan.probes):
            task = bar.add_task(f"{label}{probe}", total=len(chosen))
            results = []
            for place, item in enumerate(chosen):
                part = f"{probe}/{place:04d}-{safe_name(item.name)}"
                results.append(probing.part(home, part, partial(probing.one, probe, place)))
                bar.update(task, advance=1)
            by_series[probe] = results
        of_all = {}
        for probe in (item for item in OF_ALL if item in plan.probes):
            task = bar.add_task(f"{label}{probe}", total=len(chosen))
            of_all[probe] = probing.part(home, probe, partial(probing.all, probe))
            bar.update(task, completed=len(chosen))
        summary = probing.part(home, "series", probing.summary)
    facts = {
        "classes": [str(entry) for entry in adapter.classes],
        "window_length": adapter.window_length,
        "stride": adapter.stride,
        "retrieves": adapter.retrieves,
        "event_class": None if event_class is None else str(event_class),
        "layers": [", ".join(layer) for layer in layers_of(adapter)],
        "not_applicable": not_applicable(adapter),
        "in_part": in_part(adapter),
        "plan": asdict(plan),
        **(about or {}),
    }
    return Parts(series=summary, by_series=by_series, of_all=of_all, about=json_ready(facts))


@dataclass(eq=False)
class _Probing:
    """One adapter with its series; attributions are made when they are first needed."""

    adapter: ModelAdapter
    series: list[Series]
    plan: Plan
    truth: Mapping[str, NDArray[np.bool_]]
    event_class: Any
    other: ModelAdapter | None
    attributions: dict[int, WindowAttribution] = field(default_factory=dict)
    effects: dict[int, dict[str, NDArray[np.float64]]] = field(default_factory=dict)

    @cached_property
    def hash(self) -> str:
        """Hash of model, series and settings; which probes are run does not enter."""
        decides = {
            "revision": REVISION,
            "subject": self.adapter.identity,
            "other": None if self.other is None else self.other.identity,
            "series": [[item.name, item.digest, str(item.label)] for item in self.series],
            "truth": {name: np.packbits(item).tolist() for name, item in sorted(self.truth.items())},
            "event_class": str(self.event_class),
            "plan": [self.plan.seed, self.plan.n_steps, self.plan.n_random],
        }
        return canonical_hash(json_ready(decides))[:12]

    def part(self, home: Path, name: str, compute: Callable[[], Any]) -> Any:
        """Result in a file, computed if it is missing or damaged."""
        return computed_once(home / f"{name}.json", f"{self.hash}/{name}", compute)

    def attribution(self, place: int) -> WindowAttribution:
        """Of one series, with neighbours."""
        if place not in self.attributions:
            self.attributions[place] = next(self.adapter.attributions([self.series[place]], with_lists=True))
        return self.attributions[place]

    def every_attribution(self) -> list[WindowAttribution]:
        """Of all series."""
        return [self.attribution(place) for place in range(len(self.series))]

    def summary(self) -> list[dict[str, Any]]:
        """Facts about each series."""
        return [
            {
                "name": item.name,
                "group": str(item.group if item.group is not None else item.name),
                "label": None if item.label is None else str(item.label),
                "seconds": item.seconds,
                "predicted": str(self.adapter.classes[attribution.predicted]),
                "probability": attribution.probability,
                "n_windows": len(attribution.weights),
                "weights_differ": attribution.weights_differ,
            }
            for item, attribution in zip(self.series, self.every_attribution(), strict=True)
        ]

    def one(self, probe: str, place: int) -> Any:
        """A probe of one series."""
        attribution = self.attribution(place)
        seed = self.plan.seed + int(self.series[place].digest, 16) % 2**31  # independent of the other series
        effects = self.effects.setdefault(place, {})  # of single stretches, which two probes use
        if probe == DELETION:
            sizes = {"n_steps": self.plan.n_steps, "n_random": self.plan.n_random}
            found = delete_and_insert(self.adapter, attribution, seed=seed, effects=effects, **sizes)
            return {
                "curves": found.rows(),
                "missing": found.missing,
                "gradient_found": found.gradient_found,
                "dropped": found.dropped,
            }
        if probe == COUNTERFACTUAL:
            return {
                "windows": replaced_windows(self.adapter, attribution, seed=seed),
                "flips": smallest_flips(self.adapter, attribution, seed=seed, effects=effects),
            }
        if probe == STABILITY:
            return changed_a_little(self.adapter, attribution, other=self.other, seed=seed)
        if probe == CONTEXT:
            return moved_context(self.adapter, attribution, seed=seed)
        truth = self.truth.get(attribution.series.name)
        class_ = attribution.predicted
        if self.event_class is not None:
            class_ = [str(label) for label in self.adapter.classes].index(str(self.event_class))
        found_there = None if truth is None else located(attribution, truth, class_)
        return None if found_there is None else asdict(found_there)

    def all(self, probe: str) -> Any:
        """A probe of all series together."""
        if probe == RETRIEVAL:
            rows = randomised_retrieval(self.adapter, self.series, seed=self.plan.seed)
            return list(rows) if self.adapter.retrieves else None
        if probe == NETWORK:
            steps = randomised_network(self.adapter, self.every_attribution(), seed=self.plan.seed)
            return list(steps) if self.adapter.has_layers else None
        # linear probes of the fitted model and, where it has layers, of the scrambled one
        groups = [item.group if item.group is not None else item.name for item in self.series]
        networks = [("fitted", self.adapter)]
        if self.adapter.has_layers:
            everything = [name for some in layers_of(self.adapter) for name in some]
            other = scrambled(self.adapter.network, everything, seed=self.plan.seed)
            networks.append(("scrambled", self.adapter.with_network(other)))
        return [
            {"network": which, **row}
            for which, adapter in networks
            for row in held_features(adapter, self.series, groups, seed=self.plan.seed)
        ]


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SeriesFaithfulness:
    """All probes of one series; intervals and a verdict need many series, `raxss faithfulness`."""

    name: str
    predicted: Any
    probability: float
    seconds: float
    deletion: (
        Deleted  # curves over the seconds replaced; `deletion.gain(order, baseline)` against random orders
    )
    windows: pd.DataFrame  # fall of the score when one window is replaced
    flips: dict[
        str, dict[str, Any]
    ]  # baseline -> fewest stretches found that change the decision, an upper bound
    stability: pd.DataFrame  # what small changes do to the evidence, a row each
    network: pd.DataFrame  # what scrambled layers do to it; empty where there are none
    retrieval: (
        pd.DataFrame
    )  # what randomised neighbours do to it; empty where weights do not come from neighbours
    not_applicable: dict[str, str] = field(default_factory=dict)  # probe -> sentence that says why
    in_part: dict[str, str] = field(default_factory=dict)  # probe -> sentence about the part that it is of
    context: pd.DataFrame = field(
        default_factory=pd.DataFrame
    )  # what other contexts of windows do to the score

    def gains(self) -> pd.DataFrame:
        """A row for each order that exists, a column for each baseline: area gained over random orders."""
        there = {curve.order for curve in self.deletion.curves}
        orders = [order for order in ORDERS if order in there and order != RANDOM]
        gains = {name: [self.deletion.gain(order, name) for order in orders] for name in BASELINES}
        return pd.DataFrame(gains, index=pd.Index(orders, name="order"))

    def __repr__(self) -> str:
        gains = self.gains()
        lines = [
            f"SeriesFaithfulness({self.name!r})",
            f"  predicted {self.predicted!r} ({self.probability:.3f})",
        ]
        for name in BASELINES if CONTRIBUTION in gains.index else ():
            lines.append(
                f"  replaced by the {name}: contributions gain {gains.loc[CONTRIBUTION, name]:+.3f} over random "
                f"orders (at most about {gains.loc[OCCLUSION, name]:+.3f})"
            )
        for name, flip in self.flips.items():
            outcome = (
                f"at most {flip['seconds']:.4g} of {self.seconds:.4g} s change the decision"
                if flip["flips"]
                else "the decision stays"
            )
            lines.append(f"  {outcome} when replaced by the {name}")
        if len(self.network):
            left = float(self.network["rank_correlation"].iloc[-1])
            lines.append(f"  rank correlation of evidence when the network is destroyed: {left:.2f}")
        lines += [f"  {sentence}" for sentence in self.in_part.values()]
        for row in self.stability.to_dict("records"):
            lines.append(f"  the same after {row['change']}: {row['rank_correlation']:.2f}")
        for row in self.context.to_dict("records"):
            outcome = "the decision changes" if row["flipped"] else "the decision stays"
            lines.append(
                f"  context of windows {row['change']}: the score falls by {row['fall']:+.3f}, {outcome}"
            )
        lines += [f"  no order by {name}: {why}" for name, why in self.deletion.missing.items()]
        lines += [f"  {sentence}" for sentence in self.not_applicable.values()]
        return "\n".join(lines)


def layers_of(adapter: ModelAdapter) -> list[list[str]]:
    """Layers that are scrambled, the last first: of a mixture those of its network, of window classifiers none."""
    return layers_from_the_top(adapter.network) if adapter.has_layers else []


def not_applicable(adapter: ModelAdapter) -> dict[str, str]:
    """Probes that the model cannot be asked, each with a sentence that says why."""
    return {} if adapter.has_layers else {NETWORK: f"Parameter randomisation {NO_LAYERS}"}


def in_part(adapter: ModelAdapter) -> dict[str, str]:
    """Probes of one part of the model, on which no verdict about the whole rests, each with a sentence."""
    mixture = adapter.network
    if not isinstance(mixture, Mixture) or mixture.network is None:
        return {}
    weight = float(mixture.weights[[*mixture.members].index(mixture.network)])
    return {
        NETWORK: f"Parameter randomisation is of the member {type(mixture.network).__name__}, of weight "
        f"{weight:.2f}; the window classifiers stay as they are, and the verdict does not rest on it"
    }


def faithfulness_of(
    adapter: ModelAdapter, series: Series, *, seed: int = 0, n_steps: int = N_STEPS, n_random: int = N_RANDOM
) -> SeriesFaithfulness:
    """Run every probe that one series allows."""
    attribution = next(adapter.attributions([series], with_lists=True))
    retrieval = next(randomised_retrieval(adapter, [series], seed=seed)) if adapter.retrieves else []
    effects: dict[str, Any] = {}  # of single stretches, which two probes use
    network = []
    if adapter.has_layers:
        network = [rows[0] for rows in randomised_network(adapter, [attribution], seed=seed)]
    return SeriesFaithfulness(
        name=series.name,
        predicted=adapter.classes[attribution.predicted],
        probability=float(attribution.probability[attribution.predicted]),
        seconds=series.seconds,
        deletion=delete_and_insert(
            adapter, attribution, seed=seed, n_steps=n_steps, n_random=n_random, effects=effects
        ),
        windows=pd.DataFrame(replaced_windows(adapter, attribution, seed=seed)),
        flips=smallest_flips(adapter, attribution, seed=seed, effects=effects),
        stability=pd.DataFrame(changed_a_little(adapter, attribution, seed=seed)),
        network=pd.DataFrame(network),
        retrieval=pd.DataFrame(retrieval),
        not_applicable=not_applicable(adapter),
        in_part=in_part(adapter),
        context=pd.DataFrame(moved_context(adapter, attribution, seed=seed) or []),
    )
