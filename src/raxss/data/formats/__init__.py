"""File formats of recordings, one module each: what to look at before decoding, how to open, how to read.

To add a format, imitate csv_tables.py (one file) or edf/ (a package): write ``inspect(path, root) -> problems`` and
``open(path, root, rate) -> Recording``, make a `Format` of them, and add it to the list below. For recordings that
are read whole, `array_files.array_format` makes it of two functions of the open file: what to look at, and the
samples. Everything else (opening, ``raxss check``, folder search, BIDS, manifests) finds it by its suffix;
``tests/test_formats.py`` needs one line, a writer of a small example. A format outside of this package is
registered with `register_format`.

Read registry.py (what a format is), fields.py and decoding.py (tools for all of them), then opening.py, the way in.
"""

from raxss.data.formats.brainvision import BRAINVISION
from raxss.data.formats.csv_tables import CSV
from raxss.data.formats.edf import BDF, EDF
from raxss.data.formats.numpy_arrays import NPY, NPZ
from raxss.data.formats.opening import files_of, inspect_recording, open_recording
from raxss.data.formats.registry import (
    FORMATS,
    Format,
    RecordingFacts,
    format_of,
    header_of,
    register_format,
)
from raxss.data.formats.wfdb import WFDB

__all__ = [
    "FORMATS",
    "Format",
    "RecordingFacts",
    "files_of",
    "format_of",
    "header_of",
    "inspect_recording",
    "open_recording",
    "register_format",
]

for _known in (  # in the order in which messages list them
    EDF,
    BDF,
    BRAINVISION,
    WFDB,
    NPZ,
    NPY,
    CSV,
):
    register_format(_known)
