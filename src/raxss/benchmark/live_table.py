"""How far has a study come? A live table on stderr, nothing where stderr is not a terminal."""

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
    """One line a system: how many runs are done, failed and left; below it, how long the rest may take.

    Parameters
    ----------
    totals, done
        Runs of each system in this run, and those of them that earlier runs have done.
    n_workers
        How many are worked on at once.

    Examples
    --------
    >>> board = LiveTable("cells", {"sss": 3, "gru": 2}, {"sss": 1}, n_workers=2, now=iter([0.0, 10.0]).__next__)
    >>> board.tell("sss")
    >>> board.summary()
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

    def tell(self, name: str, *, failed: bool = False) -> None:
        """One more run of a system is done, or failed."""
        row = self._rows[name]
        row.done, row.failed = row.done + (not failed), row.failed + failed

    def summary(self) -> str:
        """The whole board in one line."""
        rows = self._rows.values()
        n_done, n_failed, n_left = (
            sum(getattr(row, part) for row in rows) for part in ("done", "failed", "left")
        )
        n_now = n_done + n_failed - self._n_before
        n_running = min(self._n_workers, n_left)
        told = f"{n_done} of {n_done + n_failed + n_left} done, {n_running} running, {n_failed} failed"
        if not n_left or not n_now:
            return told
        seconds = round((self._now() - self._started) / n_now * n_left)
        return f"{told}, about {seconds // 3600}:{seconds // 60 % 60:02d}:{seconds % 60:02d} left"

    def _drawn(self) -> Table:
        """Names are `Text`: in a plain string rich would take their brackets and colons for markup."""
        table = Table(title=Text(self._title, "table.title"), caption=self.summary())
        table.add_column("system")
        for heading in ("done", "failed", "left"):
            table.add_column(heading, justify="right")
        for name, row in self._rows.items():
            failed = f"[red]{row.failed}[/red]" if row.failed else "0"
            table.add_row(Text(name), str(row.done), failed, str(row.left))
        return table
