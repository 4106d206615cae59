"""Which files are recordings, and how large may they become in memory?

The numbers that inspection and reading share. Next: inspection/ looks at files, array_files.py and its neighbours
read them.
"""

from __future__ import annotations

WFDB_SUFFIXES = (".hea", ".dat", ".mat")
BRAINVISION_SUFFIXES = (".vhdr", ".eeg", ".vmrk")
SUFFIXES = (".npz", ".npy", ".csv", ".edf", ".bdf", *BRAINVISION_SUFFIXES, *WFDB_SUFFIXES)
# Bytes of all samples as float64 over those of a packed file: recordings reach 2 to 20, flat lines thousands, and a
# file of 10 MB stays below 256 MB.
MAX_EXPANSION = 24
ALWAYS_ALLOWED = 2**26  # bytes of samples as float64 that any file may have, however well it is packed
# bytes of one sample in the file, by WFDB's number of the storage format; compressed formats (5xx) vary
WFDB_SAMPLE_BYTES = {
    "8": 1,
    "16": 2,
    "24": 3,
    "32": 4,
    "61": 2,
    "80": 1,
    "160": 2,
    "212": 1.5,
    "310": 4 / 3,
    "311": 4 / 3,
}


def is_bomb(n_samples: int, n_bytes: int) -> bool:
    """Whether so many samples, in memory, are far more than a recording packs into a file of so many bytes.

    >>> is_bomb(10**6, 1000), is_bomb(10**8, 10**6)
    (False, True)
    """
    return n_samples * 8 > max(ALWAYS_ALLOWED, MAX_EXPANSION * n_bytes)
