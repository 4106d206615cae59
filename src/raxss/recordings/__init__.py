"""From recordings to labelled series."""

from raxss.recordings.series import Series, SeriesCollection

__all__ = ["Series", "SeriesCollection"]
