"""Running third-party decoders: their warnings are not shown, and their errors become a RecordingError.

    with decoding(name): warnings and log lines, which quote headers and paths, are not shown, and whatever is
    raised becomes a RecordingError that names the recording, not its content

Next: reading.py of edf, brainvision and wfdb use it.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from raxss.errors import MissingExtraError, RAxSSError, RecordingError

BLOCK_BYTES = 2**23  # of a file, decoded at a time: what a long stretch takes is little more than its samples


def decoder(package: str, name: str, extra: str = "bids") -> ModuleType:
    """Import a package that decodes recordings, or say which extra of raxss installs it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(package)
    except ImportError as error:
        raise MissingExtraError(
            f"recording {name!r} needs the package {package.partition('.')[0]}, which is not installed. Install it "
            f"with: pip install 'raxss[{extra}]'"
        ) from error


@contextmanager
def decoding(name: str) -> Iterator[None]:
    """Run a decoder: without warnings, nothing below an error in mne's log, and with one kind of error.

    >>> with decoding("night"):
    ...     int("Jane Doe")
    Traceback (most recent call last):
    raxss.errors.RecordingError: recording 'night' cannot be decoded (ValueError). It is damaged, or ...
    """
    log = logging.getLogger("mne")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except RAxSSError:
        raise
    except ImportError as error:  # wfdb imports what reads FLAC when it meets it
        raise MissingExtraError(
            f"recording {name!r} needs the package {error.name or 'of its decoder'}, which is not installed. "
            "Install it with: pip install 'raxss[bids]'"
        ) from None
    except MemoryError:
        raise RecordingError(
            f"recording {name!r} needs more memory than there is. Read a shorter stretch or fewer channels."
        ) from None
    except OSError as error:
        raise RecordingError(
            f"recording {name!r} cannot be read: {error.strerror or type(error).__name__}. Check the file and its "
            "permissions."
        ) from None
    except Exception as error:  # decoders raise anything, and quote what they were reading
        raise RecordingError(
            f"recording {name!r} cannot be decoded ({type(error).__name__}). It is damaged, or changed since it "
            "was inspected: run raxss check on it, then copy or write it again."
        ) from None
    finally:
        log.setLevel(level)
