"""Progress bars on stderr, quiet where stderr is not a terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from typing import Any, TypeVar

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn

Item = TypeVar("Item")


def progress_bar(*, unit: str, quiet: bool = False) -> Progress:
    """A rich progress bar on stderr; shows nothing if ``quiet``, or where stderr is not a terminal."""
    return Progress(
        TextColumn("{task.description}", markup=False),  # names may have brackets
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeRemainingColumn(),
        console=Console(stderr=True),
        disable=quiet or not sys.stderr.isatty(),
    )


def with_progress(
    results: Generator[Item, None, None], total: int, title: str, *, unit: str, quiet: bool = False
) -> Generator[Item, None, None]:
    """The same results, counted by a bar; whatever ends this early closes what gives them."""
    with progress_bar(unit=unit, quiet=quiet) as bar, closing(results):
        task = bar.add_task(title, total=total)
        for result in results:
            bar.advance(task)
            yield result


@contextmanager
def share_bar(description: str, total: int, *, unit: str) -> Iterator[Callable[[float], None] | None]:
    """A bar for a share of the work: yields a function that takes it, or None where nothing is shown."""
    with progress_bar(unit=unit) as bar:
        if bar.disable:
            yield None
            return
        task = bar.add_task(description, total=total)
        yield lambda share: bar.update(task, completed=round(share * total))


class ProgressBar:
    """A `raxss.method.training.loop.Callback` that draws one bar over all steps.

    Where stderr is not a terminal it prints one plain line an epoch instead.
    """

    def __init__(self) -> None:
        self._bar = progress_bar(unit="steps")
        self._task: TaskID

    def on_train_begin(self, n_epochs: int, n_steps: int) -> None:
        """Start the bar."""
        self._n_steps, self._n_epochs = n_steps, n_epochs
        self._bar.start()
        self._task = self._bar.add_task("training", total=n_epochs * n_steps)

    def on_step(self, epoch: int, step: int) -> None:
        """Move it."""
        self._bar.update(self._task, completed=epoch * self._n_steps + step)

    def on_epoch_end(self, record: dict[str, Any]) -> None:
        """Show loss and accuracy of the epoch."""
        figures = f"epoch {record['epoch']}/{self._n_epochs} loss {record['train_loss']:.3f}"
        if "validation_accuracy" in record:
            figures += f", validation accuracy {record['validation_accuracy']:.3f}"
        if "validation_balanced_accuracy" in record:
            figures += f" (balanced {record['validation_balanced_accuracy']:.3f})"
        self._bar.update(self._task, description=figures)
        if self._bar.disable:
            print(figures, file=sys.stderr, flush=True)

    def on_train_end(self) -> None:
        """Leave the bar as it is."""
        self._bar.stop()
