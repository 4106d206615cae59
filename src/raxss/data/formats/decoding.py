"""Decoding of samples: a block at a time, and by third-party packages without their warnings.

with decoding(name): warnings and log lines, which quote headers and paths, are not shown, and whatever is
raised becomes a RecordingError that names the recording, not its content
"""

from __future__ import annotations

import warnings
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
from numpy.typing import NDArray

from raxss.data.recording import Recording
from raxss.errors import MissingExtraError, RAxSSError, RecordingError

BLOCK_BYTES = 2**23  # of a file, decoded at a time: what a long stretch takes is little more than its samples


class BlockRecording(Recording):
    """A recording whose samples are decoded a block at a time, so that a long stretch takes little more memory."""

    @abstractmethod
    def _block_samples(self, channel: int) -> int:
        """How many samples of a channel are decoded at a time."""

    @abstractmethod
    def _decoded(self, channels: Sequence[int], segment: int, start: int, stop: int) -> NDArray[np.float64]:
        """Samples ``(len(channels), stop - start)`` of a segment; any error is that of a decoder."""

    def read(
        self, channels: Sequence[int], *, segment: int = 0, start: int = 0, stop: int | None = None
    ) -> NDArray[np.float64]:
        """Samples ``start`` to ``stop`` of a segment."""
        start, stop = self.stretch(channels, segment, start, stop)
        samples = np.empty((len(channels), stop - start))
        if samples.size:
            at_once = max(1, self._block_samples(channels[0]))
            for first in range(start, stop, at_once):
                last = min(first + at_once, stop)
                with decoding(self.name):
                    samples[:, first - start : last - start] = self._decoded(channels, segment, first, last)
        return samples


@contextmanager
def decoding(name: str) -> Iterator[None]:
    """Import or run a decoder: without warnings, and with one kind of error.

    >>> with decoding("night"):
    ...     int("Jane Doe")
    Traceback (most recent call last):
    raxss.errors.RecordingError: recording 'night' cannot be decoded (ValueError). It is damaged, or ...
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    except RAxSSError:
        raise
    except ImportError as error:  # wfdb imports what reads FLAC when it meets it
        found = (
            f"recording {name!r} needs the package {error.name or 'of its decoder'}, which is not installed"
        )
        raise MissingExtraError(f"{found}. Install it with: pip install 'raxss[bids]'") from None
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
