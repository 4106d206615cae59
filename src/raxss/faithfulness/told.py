"""What does a report say of the faithfulness of its model?

    folder of raxss faithfulness, the model's hash -> verdict, the sentences it rests on, a link to the page

A report is one file, so the words are in it; the page with the plots stays where it is. A verdict is about one
model: that of another is refused. Next: ../cli/explain.py puts it among what is told of the model.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raxss.errors import DataError, ModelError, shown

PAGE = "page.html"


def told_in_report(folder: Path, *, weights_sha256: str, beside: Path) -> dict[str, Any]:
    """Verdict, reason, sentences and a relative link, as `raxss.evidence.report.contents` takes them.

    Parameters
    ----------
    folder
        What `raxss faithfulness MODEL DATA --out` wrote.
    weights_sha256
        Of the model that the report is by.
    beside
        The folder that the report lies in.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "trust"
    >>> folder.mkdir()
    >>> found = {"verdicts": {"model": {"verdict": "faithful", "why": "all hold", "said": [["yes", "It rests"]]}},
    ...          "about": {"model": {"weights_sha256": "5f3c"}}}
    >>> _ = (folder / "verdict.json").write_text(json.dumps(found))
    >>> told_in_report(folder, weights_sha256="5f3c", beside=folder.parent / "why")["link"]
    '../trust/page.html'
    """
    try:
        found = json.loads((folder / "verdict.json").read_text("utf-8"))
        about = {name: one.get("weights_sha256") for name, one in found["about"].items()}
        own = next((name for name, digest in about.items() if digest == weights_sha256), None)
        if own is None:
            raise ModelError(
                f"what is in {shown(folder)} is not about this model: it was made with weights "
                f"{shown(next((str(one) for one in about.values() if one), 'unknown'))}, the model has "
                f"{shown(weights_sha256)}. Run raxss faithfulness with this model, or leave --faithfulness out."
            )
        one = found["verdicts"][own]
        said = [[str(holds), str(text)] for holds, text in one["said"]]
        told = {"verdict": str(one["verdict"]), "why": str(one["why"]), "said": said}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, ModelError):
            raise
        raise DataError(
            f"{shown(folder)} has no verdict that can be read ({type(error).__name__}: {error}); needed is a "
            "folder that raxss faithfulness wrote."
        ) from error
    return told | {"link": quote(Path(os.path.relpath(folder / PAGE, beside)).as_posix())}
