"""What commands share: help of arguments and options, refusals of options, text that is safe to print."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_type_hints

import typer

Command = TypeVar("Command", bound=Callable[..., None])

SHARED = {
    "data": typer.Argument(
        help="Folder written by raxss prepare, named dataset (see raxss datasets), or CSV manifest: "
        "path,label,group[,rate,channel]."
    ),
    "model": typer.Argument(help="Model folder written by raxss fit."),
    "inputs": typer.Argument(
        help="Recordings (.edf, .bdf, .vhdr, WFDB, .npz, .npy, .csv), CSV manifests with a column 'path', BIDS "
        "roots, or folders that raxss prepare made."
    ),
    "root": "Folder with the named datasets. Default: the variable RAXSS_DATA.",
    "preset": "Preset: paper, sss, tuned, or recommended: the defaults of the estimator.",
    "seed": "Random seed of split, initial weights and order of windows.",
    "max_epochs": "Maximum number of epochs.",
    "device": "Device: auto, cpu or cuda.",
    "bank": "Windows that may be neighbours, overriding the model: series (all windows), local (those nearest in "
    "time) or sampled (segments spread over the series); the latter two for recordings of many hours.",
    "bank_size": "Number of windows in a local or sampled bank.",
    "rate": "Sampling rate in Hz of files that do not state it (.npy, .npz, .csv).",
    "resample": "Resample recordings to the sampling rate of the training series, with anti-aliasing. Otherwise, "
    "rates that differ by more than a tenth are refused.",
    "split": "Use only the test set of this split of a prepared folder.",
    "faithfulness": "Folder that raxss faithfulness wrote for this model: reports state its verdict and link to "
    "its page.",
    "overwrite": "Replace existing output.",
}


def described(**own: Any) -> Callable[[Command], Command]:
    """Give every parameter of a command its help, from ``own`` or from `SHARED`.

    A text makes an option of the parameter's name, for a bool a flag without a ``--no-`` form. Other names, limits
    and arguments are given as `typer.Option` or `typer.Argument`.
    """

    def attach(command: Command) -> Command:
        hints = get_type_hints(command)
        for name, info in (SHARED | own).items():
            if name in hints:
                if isinstance(info, str):
                    flag = [f"--{name.replace('_', '-')}"] if hints[name] is bool else []
                    info = typer.Option(*flag, help=info)
                hints[name] = Annotated[hints[name], info]
        command.__annotations__ = hints
        return command

    return attach


def refuse_if(wrong: object, message: str) -> None:
    """Exit with code 2 and this message where options are wrong."""
    if wrong:
        raise typer.BadParameter(message)


def printable(error: BaseException | str) -> str:
    """An error's text without control characters, which names from files may carry into a terminal.

    >>> printable(ValueError("channel \\x1b[31mC3"))
    'channel ?[31mC3'
    """
    text = str(error.strerror) if isinstance(error, OSError) and error.strerror else str(error)
    return "".join(letter if letter.isprintable() or letter == "\n" else "?" for letter in text)


def counted(number: int, noun: str) -> str:
    """``1 plot``, ``2 plots``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
