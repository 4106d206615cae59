"""Parameter randomisation: evidence of a network whose layers are scrambled one after the other.

    ModelAdapter, series -> layers scrambled from the last to the first, one more at a time -> new evidence
        -> rank correlation of contributions, weights and posteriors with those of the model as it is

Evidence that stays while the network is destroyed shows the signal, or the method, and not the model (Adebayo et
al., 2018). Weights from the signal alone stay by construction.
Next: counterfactual.py changes the signal again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from torch import nn

from raxss.data.series import Series
from raxss.explain.faithfulness.model_adapter import ModelAdapter, WindowAttribution, scrambled
from raxss.explain.faithfulness.timeline import rank_correlation, top_overlap

MOST_STEPS = 8


def layers_from_the_top(network: nn.Module, n_most: int = MOST_STEPS) -> list[list[str]]:
    """Names of modules that hold parameters themselves, the last first, in at most so many portions.

    Examples
    --------
    >>> layers_from_the_top(nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 1)))
    [['2'], ['0']]
    """
    own: dict[str, None] = {}
    for name, _ in network.named_parameters():
        own.setdefault(name.rpartition(".")[0] or name)
    names = [*own][::-1]
    portions = np.array_split(np.arange(len(names)), min(n_most, len(names))) if names else []
    return [[names[place] for place in some] for some in portions]


def randomised_network(
    adapter: ModelAdapter, attributions: Sequence[WindowAttribution], *, seed: int = 0
) -> Iterator[list[dict[str, Any]]]:
    """For each step of the cascade a list with a row for each series.

    Rows: ``step``, from 1; ``layers``, those that were scrambled last; ``share``, of the layers scrambled so far;
    ``rank_correlation`` and ``top_overlap`` of contributions to the class that was predicted before;
    ``posterior_correlation``, ``weight_correlation`` (None where weights are equal); ``moved`` as in
    retrieval_randomisation.py; ``probability``.

    Examples
    --------
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(window_length=128, stride=128, max_epochs=1, random_state=0).fit(series)
    >>> adapter = model.model_adapter()
    >>> steps = list(randomised_network(adapter, list(adapter.attributions(series[:2]))))
    >>> len(steps), steps[0][0]["layers"], steps[-1][0]["weight_correlation"]  # these weights are the signal's
    (8, 'head, layers.19', 1.0)
    """
    portions = layers_from_the_top(adapter.network)
    series: list[Series] = [item.series for item in attributions]
    gone: list[str] = []
    for step, names in enumerate(portions, start=1):
        gone += names
        other = adapter.with_network(scrambled(adapter.network, gone, seed=seed))
        facts = {"step": step, "layers": ", ".join(names), "share": len(gone) / sum(map(len, portions))}
        yield [
            {**facts, **_compared(before, after)}
            for before, after in zip(attributions, other.attributions(series), strict=True)
        ]


def _compared(before: WindowAttribution, after: WindowAttribution) -> dict[str, Any]:
    class_ = before.predicted
    both = before.contributions(class_), after.contributions(class_)
    weighs = before.weights_differ
    return {
        "rank_correlation": rank_correlation(*both),
        "top_overlap": top_overlap(*both),
        "posterior_correlation": rank_correlation(before.posteriors[:, class_], after.posteriors[:, class_]),
        "weight_correlation": rank_correlation(before.weights, after.weights) if weighs else None,
        "moved": float(abs(after.probability[class_] - before.probability[class_])),
        "probability": after.probability.round(8).tolist(),
    }
