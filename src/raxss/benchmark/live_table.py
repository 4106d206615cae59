"""Live table of the progress of a study on stderr, if that is a terminal."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text


@dataclass
class _Row:
    total: int
    done: int = 0
    failed: int = 0

    @property
    def left(self) -> int:
        return self.total - self.done - self.failed


class LiveTable:
    """Runs of each system that are done, failed and left; below, an estimate of the time left.

    Parameters
    ----------
    totals, done
        Runs of each system, and those of them that were done before.
    n_workers
        Number of runs at once.

    Examples
    --------
    >>> progress = LiveTable("runs", {"sss": 3, "gru": 2}, {"sss": 1}, n_workers=2, now=iter([0.0, 10.0]).__next__)
    >>> progress.count("sss")
    >>> progress.summary()
    '2 of 5 done, 2 running, 0 failed, about 0:00:30 left'
    """

    def __init__(
        self,
        title: str,
        totals: Mapping[str, int],
        done: Mapping[str, int] | None = None,
        *,
        n_workers: int = 1,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._title, self._n_workers, self._now = title, n_workers, now
        self._rows = {name: _Row(total, (done or {}).get(name, 0)) for name, total in totals.items()}
        self._n_before = sum(row.done for row in self._rows.values())
        self._started = now()
        self._live: Live | None = None
        if sys.stderr.isatty():
            self._live = Live(get_renderable=self._drawn, console=Console(stderr=True), refresh_per_second=2)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def count(self, name: str, *, failed: bool = False) -> None:
        """Count one more run of a system."""
        row = self._rows[name]
        row.done, row.failed = row.done + (not failed), row.failed + failed

    def summary(self) -> str:
        """The whole table in one line."""
        rows = self._rows.values()
        n_done, n_failed, n_left = (
            sum(getattr(row, part) for row in rows) for part in ("done", "failed", "left")
        )
        n_now = n_done + n_failed - self._n_before
        n_running = min(self._n_workers, n_left)
        text = f"{n_done} of {n_done + n_failed + n_left} done, {n_running} running, {n_failed} failed"
        if not n_left or not n_now:
            return text
        seconds = round((self._now() - self._started) / n_now * n_left)
        return f"{text}, about {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"

    def _drawn(self) -> Table:
        """Names are `Text`: rich takes brackets and colons in strings for markup."""
        table = Table(title=Text(self._title, "table.title"), caption=self.summary())
        table.add_column("system")
        for heading in ("done", "failed", "left"):
            table.add_column(heading, justify="right")
        for name, row in self._rows.items():
            failed = f"[red]{row.failed}[/red]" if row.failed else "0"
            table.add_row(Text(name), str(row.done), failed, str(row.left))
        return table
