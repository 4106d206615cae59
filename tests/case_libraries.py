"""Small case libraries: an encoder without a network, labelled series of several people, contents of folders."""

import dataclasses
import hashlib

import numpy as np

from raxss import Series
from raxss.library import CaseLibrary, EncodedSeries
from raxss.method.windows import windows_of

LENGTH, STRIDE, WIDTH = 32, 16, 4
CLASSES = ("calm", "busy")
PEOPLE = ("Ann Leigh", "Bob Rayner", "Cyd Foxe", "Dan Orwell", "Eve Poole", "Flo Kayne")


@dataclasses.dataclass(frozen=True)
class ToyEncoder:
    """Mean, deviation, mean step and maximum of each window."""

    seed: int = 0
    classes: tuple = CLASSES
    n_features: int = WIDTH
    stride: int = STRIDE
    encoded: list = dataclasses.field(default_factory=list)  # names, in the order they were asked for

    @property
    def fingerprint(self):
        return hashlib.sha256(f"toy {self.seed} {self.stride}".encode()).hexdigest()

    @property
    def facts(self):
        return {"window_length": LENGTH, "stride": self.stride, "n_variates": 1, "preparation": ""}

    def encode(self, series):
        series = list(series)
        self.encoded.extend(item.name for item in series)
        return (self._one(item) for item in series)

    def _one(self, item):
        windows = windows_of(item, window_length=LENGTH, stride=self.stride)
        samples = np.nan_to_num(windows.samples[:, 0])
        steps = np.abs(np.diff(samples, axis=1)).mean(axis=1)
        features = np.stack([samples.mean(1), samples.std(1), steps, samples.max(1)], axis=1)
        return EncodedSeries(
            item,
            start_s=windows.start_seconds,
            end_s=windows.end_seconds,
            features=features.astype(np.float32),
            posteriors=np.full((len(windows), 2), 0.5),
            usable=~windows.unusable,
            missing=windows.missing_share,
        )


def recordings(people=PEOPLE, n_each=2, n_samples=400, seed=0):
    """Noise, calm or busy; each person has some of either."""
    series = []
    for person in people:
        rng = np.random.default_rng([seed, *person.encode()])
        for number in range(n_each):
            samples = rng.normal(size=n_samples) * (1 + 2 * (number % 2))
            name = f"{person} night {number}"
            origin = {"patient": person, "recording": name}
            series.append(
                Series(samples, rate=8.0, label=CLASSES[number % 2], name=name, origin=origin, group=person)
            )
    return series


def built(folder, series=None, *, encoder=None, site="bern", **settings):
    """A library of series at one site."""
    settings = {"windows_a_recording": 5} | settings
    return CaseLibrary.build(
        encoder or ToyEncoder(),
        recordings() if series is None else series,
        folder=folder,
        site=site,
        **settings,
    )


def contents(folder):
    """Every file below a folder with its bytes."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def of_person(series, *people):
    """The series of some people."""
    return [item for item in series if item.origin["patient"] in people]
