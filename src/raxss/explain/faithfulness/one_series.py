"""All faithfulness probes of one series: every probe that one series allows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from raxss.data.series import Series
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
from raxss.explain.faithfulness.model_adapter import ModelAdapter
from raxss.explain.faithfulness.perturbation import BASELINES
from raxss.explain.faithfulness.randomisation import randomised_network, randomised_retrieval
from raxss.explain.faithfulness.stability import changed_a_little

Frame = pd.DataFrame


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class SeriesFaithfulness:
    """All probes of one series; intervals and a verdict need many series, `raxss faithfulness`.

    Attributes
    ----------
    deletion
        Curves over the seconds replaced; ``deletion.gain(order, baseline)`` against random orders.
    windows
        Fall of the score when one window is replaced.
    flips
        Baseline -> the fewest stretches found that change the decision, an upper bound.
    stability, network, retrieval
        What small changes, scrambled layers and randomised neighbours do to the evidence, a row each; ``retrieval``
        is empty where weights do not come from neighbours.
    """

    name: str
    predicted: Any
    probability: float
    seconds: float
    deletion: Deleted
    windows: Frame
    flips: dict[str, dict[str, Any]]
    stability: Frame
    network: Frame
    retrieval: Frame

    def gains(self) -> Frame:
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
        left = float(self.network["rank_correlation"].iloc[-1])
        lines.append(f"  rank correlation of evidence when the network is destroyed: {left:.2f}")
        for row in self.stability.to_dict("records"):
            lines.append(f"  the same after {row['change']}: {row['rank_correlation']:.2f}")
        lines += [f"  no order by {name}: {why}" for name, why in self.deletion.missing.items()]
        return "\n".join(lines)


def faithfulness_of(
    adapter: ModelAdapter, series: Series, *, seed: int = 0, n_steps: int = N_STEPS, n_random: int = N_RANDOM
) -> SeriesFaithfulness:
    """Run every probe that one series allows."""
    attribution = next(adapter.attributions([series], with_lists=True))
    retrieval = next(randomised_retrieval(adapter, [series], seed=seed)) if adapter.retrieves else []
    effects: dict[str, Any] = {}  # of single stretches, which two probes use
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
    )
