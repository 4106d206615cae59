"""HTML file of a report: written, and read back.

    contents -> HTML: a shell that is the same in every report, and one block of data

The file loads nothing: script and style are inside, and a content security policy names their hashes, so that
nothing else runs, whatever a channel is called. Texts are data until the script puts them on the page as text.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import html
import json
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from raxss._core.atomic import refuse_existing, write_bytes
from raxss._core.bounded import json_of, read_bytes
from raxss.errors import DataError, display_name

FORMAT = "raxss report 1"
SHELL = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src '{script_hash}'; \
style-src '{style_hash}'; img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="referrer" content="no-referrer">
<title>raxss report</title>
<style>{style}</style>
</head>
<body>
<noscript>This report needs JavaScript, which is disabled in your browser. The script is contained in this file;
nothing is loaded from the network. Research use only. Not for diagnosis.</noscript>
<main id="report"></main>
{data}</script>
<script>{script}</script>
</body>
</html>
"""
# The hash finds what happened to a file by accident, down to a bit of a sample, where no computation is exact.
DATA = '<script type="application/json" data-sha256="{digest}" id="report-data">'
#: Pages by earlier versions of the script and style, which can still be read and verified: the SHA-256 of what
#: stands before and behind their data, and the names of what their data do not have yet.
EARLIER_SHELLS: dict[str, tuple[str, ...]] = {
    "5686fc1c5191e825a8e6dbd1684f10cebc6144d3f6f420710d4e94bd0f102a18": ("seen_in_training",),
    "93b9f33d3d3becabad4209e98259fc48c00cf92631baa444256f5f45717f458c": (),
    "156ece67e94c1cec152969103e923f918e4cb2d71915032d89a265eb3ce8596c": (),
}
ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}  # so that no text can end the block it lies in
NOTEBOOK_HEIGHT = 900  # pixels
MAX_REPORT_BYTES = 2**26  # of which samples may take 9 MB, and each channel some ten kilobytes more


@dataclass(frozen=True, eq=False)
class Report:
    """One recording as a page; made by `RAxSSClassifier.report`, or from evidence by `report_of`.

    Shows itself in Jupyter, in a frame of its own.
    """

    contents: dict[str, Any]  # all its data
    lacking: tuple[str, ...] = ()  # names of data that it does not have because an earlier version wrote it

    def save(self, path: Path | str, *, overwrite: bool = False) -> Path:
        """Write the page; it appears whole or not at all."""
        refuse_existing(path, overwrite=overwrite)
        write_bytes(path, page_of(self.contents), overwrite=overwrite)
        return Path(path)

    @classmethod
    def read(cls, path: Path | str) -> Report:
        """Read what `save` wrote. A file whose shell is not that of this or a known earlier version is refused."""
        path = Path(path)
        what = f"report {display_name(path)}"
        try:
            content = read_bytes(path, what, MAX_REPORT_BYTES, why="no report that raxss writes is longer")
        except OSError as error:
            raise DataError(f"{what} cannot be read: {error.strerror or error}.") from error
        contents, lacking = contents_of(content, name=display_name(path))
        channels = contents.get("channels")
        named = isinstance(channels, list) and all(
            isinstance(channel, dict) and isinstance(channel.get("name"), str) for channel in channels
        )
        if not (named and channels and isinstance(contents.get("recording"), str)):
            raise DataError(
                f"the data of {display_name(path)} cannot be read (needed are the name of the recording and its "
                "channels, with theirs); make it anew with raxss explain."
            )
        return cls(contents, lacking)

    def __repr__(self) -> str:
        channels = self.contents["channels"]
        return f"Report({self.contents['recording']!r}, {len(channels)} channel{'s' if len(channels) > 1 else ''})"

    def _repr_html_(self) -> str:
        """A frame with the page in it: its policy stays its own, and it cannot reach the notebook."""
        page = html.escape(page_of(self.contents).decode(), quote=True)
        return (
            f'<iframe sandbox="allow-scripts" title="raxss report" width="100%" height="{NOTEBOOK_HEIGHT}" '
            f'frameborder="0" srcdoc="{page}"></iframe>'
        )


def page_of(contents: dict[str, Any]) -> bytes:
    """HTML file of a report, as bytes."""
    before, after = _shell()
    block = _block(contents)
    return before + _opening(block) + block + after


def contents_of(page: bytes, *, name: str = "report") -> tuple[dict[str, Any], tuple[str, ...]]:
    """Data of a page, and names that an earlier version did not write; refused where anything else differs."""
    before, after, lacking = _earlier_shell(page) or (*_shell(), ())
    if not (page.startswith(before) and page.endswith(after) and len(page) >= len(before) + len(after)):
        raise DataError(
            f"{name} is not a report as this version of raxss writes it: the page around its data differs. It "
            "was changed, or made by another version; make it anew with raxss explain."
        )
    start = len(before) + len(_opening(b""))
    block = page[start : len(page) - len(after)]
    if not page.startswith(_opening(block), len(before)):
        raise DataError(
            f"the data of {name} do not have the SHA-256 that it states: they were changed after raxss wrote them. "
            "Make it anew with raxss explain."
        )
    try:
        contents = json_of(block, f"the block of {len(block):,} bytes")
        if not isinstance(contents, dict) or contents.get("format") != FORMAT:
            raise ValueError(f"needed is one block of format {FORMAT!r}")
        if block != _block(contents):  # a name that stands twice, a number that is none
            raise ValueError("it is not written as raxss writes it")
    except ValueError as error:
        raise DataError(
            f"the data of {name} cannot be read ({error}); make it anew with raxss explain."
        ) from error
    return contents, lacking


def _earlier_shell(page: bytes) -> tuple[bytes, bytes, tuple[str, ...]] | None:
    """Parts before and behind the data, and names that they lack, if an earlier version wrote this page."""
    start = page.find(DATA.partition("{")[0].encode())
    end = page.find(b"</script>", max(start, 0))  # nothing in the data ends the block
    if start < 0 or end < 0:
        return None
    before, after = page[:start], page[end:]
    lacking = EARLIER_SHELLS.get(hashlib.sha256(before + b"\0" + after).hexdigest())
    return None if lacking is None else (before, after, lacking)


def _block(contents: dict[str, Any]) -> bytes:
    """The data as they lie in the page; the same contents are the same bytes."""
    text = json.dumps(contents, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    for sign, escaped in ESCAPED.items():
        text = text.replace(sign, escaped)
    return text.encode("ascii")


def _opening(block: bytes) -> bytes:
    """Opening tag of the data, with their hash."""
    return DATA.format(digest=hashlib.sha256(block).hexdigest()).encode()


@functools.cache
def _shell() -> tuple[bytes, bytes]:
    """Parts before and behind the data."""
    files = resources.files("raxss.explain.export.report")
    script, style = ((files / name).read_text("utf-8") for name in ("viewer.js", "viewer.css"))
    script_hash, style_hash = (  # in the form that a content security policy needs
        f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
        for text in (script, style)
    )
    page = SHELL.format(script=script, style=style, script_hash=script_hash, style_hash=style_hash, data="\0")
    before, after = page.encode().split(b"\0")
    return before, after
