"""Sampling rates of series, compared with those of the series that a model was fitted on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from raxss.data.prepare.preprocessing import SAME_RATE, Preparation, is_rate_known, resampled, with_gap_value
from raxss.data.series import Series
from raxss.errors import RateMismatchError, join_names

OTHER_RATE = 0.1  # of a rate: series further off are refused


@dataclass(frozen=True)
class ModelPreparation:
    """What makes a raw series like the training series, which have ``rates``; ``resample``: to their rate first.

    ``gap``: a value of missing samples besides that of the training series.
    """

    preparation: Preparation
    rates: tuple[float, ...]
    resample: bool = False
    gap: float | None = None

    def apply(self, series: Series) -> Series:
        """The prepared series."""
        if self.gap is not None and not series.preparation:
            series = with_gap_value(series, self.gap)
        if self.resample and not series.preparation and is_rate_known(series.rate):
            words = str(self.preparation)
            raw = [rate * _stride(words) for rate in self.rates if is_rate_known(rate, words)]
            if self.preparation.rate is None and raw and not _is_close(series.rate, raw, SAME_RATE):
                series = resampled(series, _nearest(series.rate, raw))
        return self.preparation.apply(series)


def check_rates_of_model(series: Sequence[Series], rates: Sequence[float]) -> None:
    """Refuse series whose rate is known and far from every known rate of the training series."""
    for item in series:
        known = _known_rates(item, rates)
        if known and not _is_close(item.rate, known, OTHER_RATE):
            stride = _stride(item.preparation)
            raw = _nearest(item.rate, known) * stride
            after = f" (both after {item.preparation!r})" if stride > 1 else ""
            raise RateMismatchError(
                f"series {item.name!r} has a rate of {item.rate:g} Hz, but the model was fitted at "
                f"{_shown_rates(known)} Hz{after}: its windows would have a different duration, and its "
                f"score would be meaningless. Resample the recording to {raw:g} Hz: with --resample, or in Python "
                f"with raxss.data.prepare.preprocessing.resampled(series, {raw:g}) before anything else."
            )


def notes_about_rate(series: Series, rates: Sequence[float]) -> list[str]:
    """What a reader should know of a series' rate, beside those of the training set, and of how it was read."""
    known = [rate for rate in rates if is_rate_known(rate, series.preparation)]
    notes = [*series.notes, *other_rate(series, rates)]
    if known and not is_rate_known(series.rate, series.preparation):
        notes.append(
            f"the rate of series {series.name!r} is not known, and the model was fitted at {_shown_rates(known)} "
            "Hz, so its windows may have a different duration. Set the rate: --rate, a column 'rate', or "
            "Series(..., rate=...)."
        )
    return notes


def other_rate(series: Series, rates: Sequence[float]) -> list[str]:
    """A warning about a series of a slightly other rate than those of the training set."""
    known = _known_rates(series, rates)
    if not known or _is_close(series.rate, known, SAME_RATE):
        return []
    return [
        f"series {series.name!r} has a rate of {series.rate:g} Hz, but the model was fitted at "
        f"{_shown_rates(known)} Hz, so its windows have a different duration. Resample it first."
    ]


def _known_rates(series: Series, rates: Sequence[float]) -> list[float]:
    """Rates of the training set to hold that of a series against; none where its own is not known."""
    if not is_rate_known(series.rate, series.preparation):
        return []
    return [rate for rate in rates if is_rate_known(rate, series.preparation)]


def _stride(preparation: str) -> int:
    pooling = Preparation.parse(preparation).pooling
    return pooling[1] if pooling else 1


def _is_close(rate: float, others: Sequence[float], share: float) -> bool:
    return any(abs(rate - other) <= share * other for other in others)


def _nearest(rate: float, others: Sequence[float]) -> float:
    return min(others, key=lambda other: abs(math.log(rate / other)))


def _shown_rates(rates: Sequence[float]) -> str:
    return join_names((f"{rate:g}" for rate in rates), 5)
