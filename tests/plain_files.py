"""Small recordings of the plain formats and WFDB, and manifests of them."""

import numpy as np
import pytest

from raxss.data.files import read_inputs

SAMPLES = np.arange(12.0).reshape(2, 6)


def write_plain(folder):
    """One recording of each plain format, all with the same two variates."""
    np.savez(folder / "a.npz", samples=SAMPLES, rate=50.0, channels=["C3", "C4"])
    np.save(folder / "b.npy", SAMPLES)
    rows = "".join(f"{left},{right}\n" for left, right in SAMPLES.T)
    (folder / "c.csv").write_text(f"C3,C4\n{rows}")
    return folder


def write_record(folder):
    """The same samples, a tenth of them in mV, as a WFDB record."""
    wfdb = pytest.importorskip("wfdb")
    options = {"fmt": ["16"] * 2, "adc_gain": [1000] * 2, "baseline": [0, 0], "write_dir": str(folder)}
    wfdb.wrsamp("rec", 250, ["mV", "mV"], ["I", "II"], SAMPLES.T / 10, **options)
    return folder / "rec"


def read_series(path, **options):
    """The one series of a recording that is read as a whole, or of which a channel is given."""
    (series,) = read_inputs([path], **options)
    return series


def manifest(folder, text, name="all.csv"):
    (folder / name).write_text(text)
    return folder / name
