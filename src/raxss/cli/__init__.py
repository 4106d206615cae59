"""The command line: ``raxss --help`` lists the commands. One file each.

torch is imported inside the commands, so that ``raxss --help`` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings

import typer

from raxss._core.version import __version__
from raxss.cli import (
    audit_split,
    check,
    datasets,
    demo,
    explain,
    faithfulness,
    fit,
    predict,
    prepare,
    rerun,
    results,
    split,
    table,
    verify,
)
from raxss.cli.common import printable
from raxss.errors import RAxSSError

app = typer.Typer(
    name="raxss",
    help="Classify medical time series of any length, and show why. Research use only.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
app.command("demo")(demo.demo)
app.command("check")(check.check)
app.command("prepare")(prepare.prepare)
app.command("split")(split.split)
app.command("audit-split")(audit_split.audit_split)
app.command("fit")(fit.fit)
app.command("predict")(predict.predict)
app.command("explain")(explain.explain)
app.command("verify")(verify.verify)
app.command("faithfulness")(faithfulness.faithfulness)
app.command("table")(table.table)
app.command("rerun")(rerun.rerun)
app.command("results")(results.results)
app.command("analyse", cls=table.ListsAnalyses)(table.analyse)
app.command("reweigh")(table.reweigh)
app.command("robustness")(table.robustness)
app.add_typer(datasets.app, name="datasets")


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"raxss {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Show the version and exit."
    ),
) -> None:
    pass


def main() -> None:
    """Run the command line: exit code 0 if all went well, 1 after an error, 2 for wrong usage, 130 if stopped."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    warnings.showwarning = _show_warning
    try:
        app()
    except RAxSSError as error:
        sys.exit(f"raxss: {printable(error)}")
    except KeyboardInterrupt:
        print("raxss: interrupted; every output is whole or not there", file=sys.stderr)
        sys.exit(130)
    except Exception as error:
        if os.environ.get("RAXSS_DEBUG"):
            raise
        sys.exit(
            f"raxss: unexpected {type(error).__name__}: {printable(error)}. This is a fault of raxss; set "
            "RAXSS_DEBUG=1 to see where it happened."
        )


_reported: set[str] = set()


def _show_warning(message: Warning | str, *_: object, **__: object) -> None:
    """The message alone: where in the code it arose says nothing to who runs a command.

    A file is read in several places of one command; an old name in it is reported once.
    """
    if isinstance(message, DeprecationWarning):
        if str(message) in _reported:
            return
        _reported.add(str(message))
    print(f"raxss: warning: {printable(str(message))}", file=sys.stderr)
