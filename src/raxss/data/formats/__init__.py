"""File formats of recordings, one module each: what to look at before decoding, how to open, how to read.

To add a format, imitate csv_tables.py (one file) or edf/ (a package): `array_files.array_format` makes a `Format`
of two functions for recordings that are read whole, `registry.header_format` of a header and of a recording that
is read on request. Register it at the end of the module; every module here is imported. Everything else (opening,
``raxss check``, folder search, BIDS, manifests) finds it by its suffix; ``tests/test_formats.py`` needs one line,
a writer of a small example. A format outside of this package is registered with `register_format` as well.

Read registry.py (what a format is), fields.py and decoding.py (tools for all of them), then opening.py, the way in.
"""

from importlib import import_module
from pkgutil import iter_modules

from raxss.data.formats.opening import files_of, inspect_recording, open_recording
from raxss.data.formats.registry import FORMATS, Format, format_of, header_of, register_format

__all__ = [
    "FORMATS",
    "Format",
    "files_of",
    "format_of",
    "header_of",
    "inspect_recording",
    "open_recording",
    "register_format",
]

# the order in which messages list formats
_FIRST = ("edf", "brainvision", "wfdb", "numpy_arrays", "csv_tables")

for _name in dict.fromkeys((*_FIRST, *(module.name for module in iter_modules(__path__)))):
    import_module(f"{__name__}.{_name}")
