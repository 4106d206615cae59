"""Reader of a faithfulness verdict for a report.

    folder of raxss faithfulness, the model's hash -> verdict, the sentences it rests on, a link to the page

A report is one file, so the words are in it; the page with the plots stays where it is. The verdict of another
model is refused. Next: ../../cli/explain.py adds it to the facts about the model.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from raxss._core.bounded import read_json
from raxss.errors import DataError, ModelError, display_name

PAGE = "page.html"


def verdict_for_report(folder: Path, *, weights_sha256: str, beside: Path) -> dict[str, Any]:
    """Verdict, reason, sentences and a relative link, as `raxss.explain.export.report.contents` takes them.

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
    >>> import json, tempfile
    >>> folder = Path(tempfile.mkdtemp()) / "trust"
    >>> folder.mkdir()
    >>> found = {"verdicts": {"model": {"verdict": "faithful", "why": "all hold", "said": [["yes", "It rests"]]}},
    ...          "about": {"model": {"weights_sha256": "5f3c"}}}
    >>> _ = (folder / "verdict.json").write_text(json.dumps(found))
    >>> verdict_for_report(folder, weights_sha256="5f3c", beside=folder.parent / "why")["link"]
    '../trust/page.html'
    """
    try:
        found = read_json(folder / "verdict.json")
        by_weights = {
            about["weights_sha256"]: _checked(found["verdicts"][name])
            for name, about in found["about"].items()
            if "weights_sha256" in about  # controls are nobody's model
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(
            f"{display_name(folder)} has no verdict that can be read ({type(error).__name__}: {error}); needed is "
            "a folder that raxss faithfulness wrote."
        ) from error
    if weights_sha256 not in by_weights:
        raise ModelError(
            f"what is in {display_name(folder)} is not about this model: it was made with weights "
            f"{display_name(str(next(iter(by_weights), 'unknown')))}, the model has "
            f"{display_name(weights_sha256)}. Run raxss faithfulness with this model, or leave --faithfulness out."
        )
    link = quote(Path(os.path.relpath(folder / PAGE, beside)).as_posix())
    return by_weights[weights_sha256] | {"link": link}


def _checked(verdict: Mapping[str, Any]) -> dict[str, Any]:
    sentences = [[str(holds), str(text)] for holds, text in verdict["said"]]
    return {"verdict": str(verdict["verdict"]), "why": str(verdict["why"]), "said": sentences}
