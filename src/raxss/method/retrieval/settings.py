"""Settings of retrieval (Eq. 1)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from raxss._core.settings import at_least
from raxss.errors import ConfigError, one_of

MOST_WINDOWS = 8  # a larger float for exclusion or spread is surely meant in samples
MOST_NEIGHBORS = 10_000
BANKS = ("series", "batch", "local", "sampled")
REFRESHES = ("never", "epoch", "batch")


@dataclass(frozen=True, kw_only=True)
class RetrievalConfig:
    """Which windows count as neighbours, and how alike they are (Eq. 1)."""

    space: Literal["signal", "features"] = "signal"  # "signal" is the paper's
    measure: Literal["pearson", "cosine"] = "pearson"  # phi
    n_neighbors: int = 10  # m
    exclusion: int | float = 0.5  # samples if an integer, a share of L if a float; the paper has 0
    spread: int | float = 0  # likewise, between listed neighbours
    bank: Literal["series", "batch", "local", "sampled"] = (
        "series"  # who may be a neighbour; see the estimator
    )
    bank_size: int = 65_536  # windows in a local or sampled bank
    refresh: Literal["never", "epoch", "batch"] = "never"  # of feature-space support, in training
    projection: int = 0  # dimensions of a learned linear map in which features are compared; 0: as they are

    def __post_init__(self) -> None:
        one_of("retrieval.space", self.space, ("signal", "features"))
        one_of("retrieval.measure", self.measure, ("pearson", "cosine"))
        one_of("retrieval.bank", self.bank, BANKS)
        one_of("retrieval.refresh", self.refresh, REFRESHES)
        at_least("retrieval.n_neighbors", self.n_neighbors, 1)
        if self.n_neighbors > MOST_NEIGHBORS:
            raise ConfigError(
                f"retrieval.n_neighbors is {self.n_neighbors}; at most {MOST_NEIGHBORS} are allowed, because every "
                "window keeps its list. The paper has 10."
            )
        at_least("retrieval.bank_size", self.bank_size, 1)
        at_least("retrieval.projection", self.projection, 0)
        at_least("retrieval.exclusion", self.exclusion, 0, whole=False)
        at_least("retrieval.spread", self.spread, 0, whole=False)
        for name in ("exclusion", "spread"):
            value = getattr(self, name)
            if isinstance(value, float) and value > MOST_WINDOWS:
                raise ConfigError(
                    f"retrieval.{name} = {value} would be {value:g} window lengths, because it is a float; at most "
                    f"{MOST_WINDOWS} are allowed. For a number of samples, write it as an integer: {value:.0f}."
                )

    def samples_of(self, name: Literal["exclusion", "spread"], window_length: int) -> int:
        """`exclusion` or `spread` in samples.

        >>> RetrievalConfig(exclusion=0.5).samples_of("exclusion", 1024)
        512
        """
        value = getattr(self, name)
        return round(value * window_length) if isinstance(value, float) else int(value)
