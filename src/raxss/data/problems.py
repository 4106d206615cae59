"""Problems of files by code, and their severity: refused or warning.

    Problem(code, message) -> Inspection(path, verdict, problems)

``refused``: nothing decodes this file. ``warning``: it can be read, and a reader should know. Every
code has a line here; messages name the field, what was found, what was needed and what to do, and never quote a
field that may hold a person.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["ok", "warning", "refused"]

REFUSED = {
    "not-found": "there is no such file, or a file that belongs to it is missing",
    "not-readable": "the file cannot be opened for reading (for example, no permission)",
    "not-a-recording": "a type of file that raxss does not read",
    "not-this-format": "the content is not what the name says",
    "not-supported": "a variant of the format that raxss cannot decode correctly",
    "header-damaged": "a field of the header cannot be understood, or the header is cut off",
    "outside": "a pointer or link leads out of the recording's folder or the BIDS root",
    "too-large": "decoding would take more memory than there is, or than the file's size can account for",
    "too-many-pieces": "an implausible number of segments or of different sampling rates",
    "bad-rate": "an implausible sampling rate",
    "bad-range": "physical or digital limits that are not numbers, equal or the wrong way round",
    "no-data": "no samples at all",
    "data-missing": "less data than the header declares, in a format whose incomplete data cannot be read reliably",
    "channels-disagree": "channels.tsv and the recording do not have the same channels",
    "units-disagree": "channels.tsv and the header state different units, so the scale is not certain",
    "time-doubtful": "a table whose first column rises as a time axis does, or whose times cannot be used",
    "header-doubtful": "a table whose first line counts its columns; a header or samples, it is not certain which",
    "sidecar-damaged": "a table or JSON file beside the recording cannot be understood",
    "not-bids": "a file or folder that breaks the rules of BIDS, so that its meaning is not certain",
}
WARNING = {
    "data-truncated": "less data than the header declares; the complete records are read",
    "data-longer": "more data than the header declares; what is declared is read",
    "header-inconsistent": "two fields of the header contradict each other; the message says which one counts",
    "blank-unit": "a channel has no unit; the message says which one is assumed, if any",
    "unknown-unit": "a channel has a unit that is not a voltage; its samples are taken as stored",
    "duplicate-channel": "several channels have one name; they are distinguished by position",
    "nameless-channel": "a channel has no name",
    "non-ascii": "text that is not ASCII where the format requires it",
    "uncalibrated": "a channel has no gain; the message says what is assumed",
    "rate-unknown": "an array or table that states no sampling rate; its times count samples",
    "time-column": "a column of a table is its time axis or counts its samples; it is no channel",
    "shape-doubtful": "an array or table with more channels than samples; it may be transposed",
    "events-outside": "events lie before the start or after the end of the recording",
    "gaps": "the recording has gaps; each stretch between them becomes a segment",
    "mixed-rates": "channels have different rates; each is read at its own",
    "rate-disagrees": "a sidecar and the recording state different sampling rates; the recording's is used",
    "sidecar-disagrees": "a sidecar contradicts the recording or another sidecar; the message says which counts",
    "units-in-volts": "channels.tsv says V and the header another voltage, which is used",
    "channels-renamed": "channels.tsv has the same channels under slightly different names",
    "channels-reordered": "channels.tsv has the same channels in another order; labels attach by name",
    "participants-disagree": "participants.tsv and the folders do not have the same subjects",
    "sidecar-incomplete": "a table or JSON file lacks a field that BIDS requires",
    "sidecar-missing": "a sidecar that BIDS requires is missing",
    "may-be-cut": "a header or table without a newline at the end, which may be truncated",
    "markers-doubtful": "a marker file that may be incomplete or of another recording; gaps may be missing",
    "first-value": "the first sample of a signal differs from the initial value in the header",
    "beyond-limits": "samples lie outside of the limits that the header gives",
    "signals-not-read": "the signals were not checked, because a package is not installed",
    "checksum": "the samples do not have the checksum in the header",
    "flat": "a channel is constant for a long time",
    "railed": "a channel sits at the limits of its converter",
    "nan-run": "a channel has samples that are NaN, infinite or implausibly large",
    "line-noise": "most of a channel's power is mains hum",
}
CODES: dict[str, tuple[Literal["warning", "refused"], str]] = {
    **{code: ("refused", meaning) for code, meaning in REFUSED.items()},
    **{code: ("warning", meaning) for code, meaning in WARNING.items()},
}


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a file."""

    code: str
    message: str

    @property
    def severity(self) -> Literal["warning", "refused"]:
        """How bad it is, by its code."""
        return CODES[self.code][0]


@dataclass(frozen=True)
class Inspection:
    """What was found about one file, before anything decoded it.

    >>> Inspection("night.edf").verdict
    'ok'
    """

    path: str
    problems: tuple[Problem, ...] = ()
    notes: tuple[str, ...] = ()  # what was left out, and why; says nothing about the file

    @property
    def verdict(self) -> Verdict:
        """The worst of its problems."""
        severities = {problem.severity for problem in self.problems}
        return "refused" if "refused" in severities else "warning" if severities else "ok"

    def as_json(self) -> dict[str, Any]:
        """As ``raxss check --json`` prints it."""
        problems = [{"code": problem.code, "message": problem.message} for problem in self.problems]
        return {"path": self.path, "verdict": self.verdict, "problems": problems}


def refusals(problems: Iterable[Problem]) -> list[Problem]:
    """Those that stop a file from being read."""
    return [problem for problem in problems if problem.severity == "refused"]
