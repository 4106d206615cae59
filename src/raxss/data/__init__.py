"""From recordings to labelled series."""

from raxss.data.series import Series, SeriesCollection

__all__ = ["Series", "SeriesCollection"]
