"""Encoder: what a case library needs of a fitted model, without knowing what kind of model that is.

    series -> Encoder.encode -> EncodedSeries: times, features (n_windows, d), posteriors (n_windows, C), quality

`raxss.estimator.encoder.encoder_of` makes one of a fitted `RAxSSClassifier`; anything else with these attributes
will do. Next: selection.py chooses among the windows, case_library.py keeps them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from raxss.data.series import Series
from raxss.errors import LibraryError

#: Entries of `Encoder.facts` that a library keeps, to say what differs where a fingerprint does.
FACTS = ("n_variates", "preparation", "rates", "stride", "window_length")


@dataclass(frozen=True, eq=False)
class EncodedSeries:
    """The windows of one series as an encoder gives them.

    Examples
    --------
    >>> encoded = EncodedSeries(
    ...     Series(np.zeros(8), name="toy"), start_s=np.array([0.0, 4.0]), end_s=np.array([4.0, 8.0]),
    ...     features=np.zeros((2, 3), np.float32), posteriors=np.full((2, 2), 0.5),
    ...     usable=np.array([True, False]), missing=np.array([0.0, 0.75]))
    >>> len(encoded), encoded.n_usable
    (2, 1)
    """

    series: Series
    start_s: NDArray[np.float64]  # (n_windows,) seconds within the recording
    end_s: NDArray[np.float64]  # (n_windows,)
    features: NDArray[np.float32]  # (n_windows, d), not standardised
    posteriors: NDArray[np.float64]  # (n_windows, C)
    usable: NDArray[np.bool_]  # (n_windows,) False where more than half of the samples are missing
    missing: NDArray[np.float64]  # (n_windows,) share of missing samples

    def __len__(self) -> int:
        return len(self.start_s)

    @property
    def n_usable(self) -> int:
        """Number of windows that may become cases."""
        return int(self.usable.sum())


@runtime_checkable
class Encoder(Protocol):
    """A fitted model as a library sees it."""

    @property
    def fingerprint(self) -> str:
        """Hash of all that changes features: weights, scaling, window length, stride, preparation, heads."""
        ...

    @property
    def classes(self) -> tuple[Any, ...]:
        """Labels that the model knows, in the order of its posteriors."""
        ...

    @property
    def n_features(self) -> int:
        """Width d of the features."""
        ...

    @property
    def facts(self) -> Mapping[str, Any]:
        """Plain values by name, of `FACTS`; a library keeps those that are there."""
        ...

    def encode(self, series: Sequence[Series]) -> Iterator[EncodedSeries]:
        """Each series in its order; series that the model cannot take are refused by the call itself."""
        ...


def as_encoder(model: Any) -> Encoder:
    """An encoder as it is, or that of a fitted model (its method ``encoder()``)."""
    if isinstance(model, Encoder):
        return model
    make = getattr(model, "encoder", None)
    if callable(make):
        made: Encoder = make()
        return made
    raise LibraryError(
        f"a {type(model).__name__} was given where a fitted model is needed, which turns windows into keys. Give a "
        "fitted RAxSSClassifier, or an object with the attributes of raxss.library.Encoder."
    )
