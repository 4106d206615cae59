"""Electrodes and contact numbers from channel names, for the schematic of a report.

    channel names -> shafts and grids: contacts in order, each with the position of its channel

Names tell neither the place in the brain nor the width of a grid: grids are drawn in rows of eight. Next:
contents.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from raxss.data.names import loosest

CONTACT = re.compile(r"([A-Z$][A-Z$_.]*'*)-?([0-9]{1,3})(?:-.*)?")
MOST_ON_A_SHAFT = 19  # depth electrodes end at 18 contacts; what has 20 and more is a grid
A_ROW = 8  # contacts of a grid that are drawn side by side


def electrodes(names: Sequence[str]) -> list[dict[str, Any]]:
    """Electrodes in the order in which they first appear, each with its contacts by number.

    Empty where no electrode has two contacts, or most names cannot be read so.

    Returns
    -------
    For each ``name``, ``kind`` ("shaft" or "grid") and ``contacts``: pairs of number and channel position.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for place, name in enumerate(names):
        match = CONTACT.fullmatch(loosest(name))
        if match:
            found.setdefault(match[1], []).append((int(match[2]), place))
    several = {name: contacts for name, contacts in found.items() if len(contacts) > 1}
    if 2 * sum(map(len, several.values())) < len(names) or not several:
        return []
    return [
        {
            "name": name,
            "kind": "grid" if max(contacts)[0] > MOST_ON_A_SHAFT else "shaft",
            "contacts": sorted(contacts),
        }
        for name, contacts in found.items()
    ]
