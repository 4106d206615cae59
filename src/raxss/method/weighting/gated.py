"""Weights by support plus a gate that is learned from the features of each window.

    gated           softmax((s + g(h)) / tau)
    gated-inverse   softmax(-(s + g(h)) / tau), a control at prediction
    gated-shuffled  the sums permuted within the series, a control at prediction

The gate itself is in ../feature_heads.py.
"""

from __future__ import annotations

from raxss.method.weighting.protocol import Floats, register_weighting
from raxss.method.weighting.support import BySupport


@register_weighting("gated")
class Gated(BySupport):
    """The influence of a window is its support plus the gate of its features."""

    needs_gate = True
    phrase = " with the gate"

    def influence(self, support: Floats, *, gate: Floats | None = None, seed: int = 0) -> Floats:
        """Support plus gate."""
        assert gate is not None, "a weighting that needs a gate is given one"
        return support + gate

    def note(self) -> str:
        """A remark that labels enter the weights."""
        return (
            "weights are support plus a gate that was learned from labels: a window may count for what it looks "
            "like, not only for how far the recording agrees with it."
        )
