"""A small BIDS tree with a clinical sheet, of which everything is known.

    make_bids(folder) -> BidsTruth: labels, onsets, and what was planted to be reported

Four centres with their habits as in ds003029: ids (``jh101``, ``pt01``, ``ummc001``, ``umf001``) that the sheet
spells otherwise (``pt1``, ``ummc_001``), markers of the seizure's onset in each centre's words, bad channels,
contacts in shorthand. Signals are BrainVision and EDF in turn. Channels of the seizure onset zone (SOZ) carry a
slow sharp rhythm, the others noise of the same variance. Texts in ``canaries`` must never come out of anything.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.signal import lfilter

SHAFTS = {"ATT": 3, "AD": 3, "G": 3}
CHANNELS = tuple(f"{shaft}{contact}" for shaft, n in SHAFTS.items() for contact in range(1, n + 1))
BAD = "G3"  # bad by channels.tsv in every run
OTHER_TYPE = "EKG"  # a MISC channel, which is no brain signal
CANARIES = ("Canaryname", "Canaryevent", "Canaryfile", "Canaryborn")
# centre -> (ids in the tree, ids in the sheet, words for the onset, words for the end)
CENTRES = {
    "JHH": ("jh10{}", "JH10{}", "SZ EVENT # (PB SZ)", "Z ELECTROGRAPHIC END"),
    "NIH": ("pt0{}", "pt{}", "onset", "offset"),
    "UMMC": ("ummc00{}", "ummc_00{}", "sz onset", "sz offset"),
    "UMF": ("umf00{}", "umf00{}", "eeg sz start", "eeg sz end"),
}
# shorthand -> the contacts that it means
SHORTHANDS = {
    "AD1-3": ("AD1", "AD2", "AD3"),
    "AD1-2, ATT1,2": ("AD1", "AD2", "ATT1", "ATT2"),
    "att1-3": ("ATT1", "ATT2", "ATT3"),
    "AD": ("AD1", "AD2", "AD3"),
    "AD1-AD2; G1": ("AD1", "AD2", "G1"),
    "ATT[1-2]\nG 1,2": ("ATT1", "ATT2", "G1", "G2"),
    "AD1–2 and ATT3": ("AD1", "AD2", "ATT3"),
}
UNMATCHED = "XY9"  # a contact that no channel has


@dataclass(frozen=True)
class BidsTruth:
    """What the tree holds."""

    root: Path
    clinical: Path
    labels: dict[str, str] = field(default_factory=dict)  # recording:channel -> soz or other; annotated, good
    onsets: dict[str, float] = field(default_factory=dict)  # recording -> second
    seconds: dict[str, int] = field(default_factory=dict)
    samples: dict[str, NDArray[np.float64]] = field(default_factory=dict)  # recording -> µV, CHANNELS first
    centres: dict[str, str] = field(default_factory=dict)  # patient (pt01) -> centre
    soz: dict[str, tuple[str, ...]] = field(default_factory=dict)  # patient -> contacts that are channels
    unmatched_contact: tuple[str, str] = ("", UNMATCHED)  # patient, and the contact that is no channel
    without_soz: str | None = None  # the patient whose cell is n/a, where a centre has two patients
    rate: float = 250.0
    canaries: tuple[str, ...] = CANARIES  # nothing that raxss writes may hold one


def make_bids(
    folder: Path | str,
    *,
    n_centres: int = 4,
    patients_per_centre: int = 2,
    runs: int = 2,
    seed: int = 69421,
    seconds: int = 20,
    rate: int = 250,
) -> BidsTruth:
    """Write a tree into ``folder`` (which need not exist) and return what is in it.

    Runs last ``seconds`` to half as much again. The first run of a patient is BrainVision, the second EDF, and so
    on; EDF channels of NIH are named ``POL AD1`` where channels.tsv says ``AD1``.
    """
    root = Path(folder)
    rng = np.random.default_rng(seed)
    without = CENTRES["JHH"][0].format(2) if patients_per_centre > 1 else None
    truth = BidsTruth(
        root,
        root / "sourcedata" / "clinical_data_summary.xlsx",
        unmatched_contact=(list(CENTRES.values())[n_centres - 1][0].format(1), UNMATCHED),
        without_soz=without,
        rate=float(rate),
    )
    (root / "sourcedata").mkdir(parents=True)
    participants, sheet = [], []
    shorthands = list(SHORTHANDS.items())
    for centre in list(CENTRES)[:n_centres]:
        in_tree, in_sheet, _, _ = CENTRES[centre]
        for number in range(1, patients_per_centre + 1):
            patient = in_tree.format(number)
            shorthand, contacts = shorthands[len(participants) % len(shorthands)]
            if patient == without:
                shorthand, contacts = "n/a", ()
            if patient == truth.unmatched_contact[0]:
                shorthand += f", {UNMATCHED}"
            outcome, engel = ("S", 1) if number % 2 else ("F", 3)
            truth.centres[patient] = centre
            truth.soz[patient] = contacts
            participants.append(f"sub-{patient}\tn/a\tF\t{outcome}\t{engel}.0\t{centre}")
            sheet.append(
                [in_sheet.format(number), CANARIES[0], CANARIES[3], centre.lower(), outcome, engel, shorthand]
            )
            names = [
                _write_run(truth, patient, run, int(rng.integers(seconds, seconds * 3 // 2 + 1)), rng)
                for run in range(1, runs + 1)
            ]
            _write_lines(
                root / f"sub-{patient}" / "ses-presurgery" / f"sub-{patient}_ses-presurgery_scans.tsv",
                [
                    "filename\tacq_time\toriginal_filename",
                    *(f"ieeg/{name}\tn/a\t{CANARIES[2]}.edf" for name in names),
                ],
            )
    _write_lines(
        root / "participants.tsv", ["participant_id\tage\tsex\toutcome\tengel_score\tsite", *participants]
    )
    description = {"Name": "A small multicentre tree", "BIDSVersion": "1.8.0", "DatasetType": "raw"}
    (root / "dataset_description.json").write_text(json.dumps(description))
    (root / "README").write_text("Generated; every signal is synthetic.\n")
    _write_sheet(truth.clinical, sheet)
    return truth


def _write_run(truth: BidsTruth, patient: str, run: int, seconds: int, rng: np.random.Generator) -> str:
    """One recording with its sidecars; the name of its signal file comes back."""
    centre = truth.centres[patient]
    recording = f"sub-{patient}_ses-presurgery_task-ictal_acq-ecog_run-{run:02d}"
    folder = truth.root / f"sub-{patient}" / "ses-presurgery" / "ieeg"
    folder.mkdir(parents=True, exist_ok=True)
    soz, n_samples = truth.soz[patient], round(seconds * truth.rate)
    rows = [_signal(rng, n_samples, truth.rate, has_rhythm=name in soz) for name in CHANNELS]
    samples = np.vstack([*rows, 500 * _signal(rng, n_samples, truth.rate, has_rhythm=False)])
    onset = round(0.4 * seconds + float(rng.uniform(0, 1)), 3)
    truth.samples[recording], truth.onsets[recording], truth.seconds[recording] = samples, onset, seconds
    if soz:
        good = [name for name in CHANNELS if name != BAD]
        truth.labels.update({f"{recording}:{name}": "soz" if name in soz else "other" for name in good})
    base = folder / recording
    suffix = ".vhdr" if run % 2 else ".edf"
    if run % 2:
        _write_brainvision(base.with_name(base.name + "_ieeg"), samples, truth.rate)
    else:
        _write_edf(
            base.with_name(base.name + "_ieeg.edf"), samples, truth.rate, "POL " if centre == "NIH" else ""
        )
    _write_channels(base.with_name(base.name + "_channels.tsv"), truth.rate)
    _write_events(base.with_name(base.name + "_events.tsv"), centre, onset, 0.8 * seconds)
    about = {
        "TaskName": "ictal",
        "SamplingFrequency": truth.rate,
        "PowerLineFrequency": 60,
        "SoftwareFilters": "n/a",
        "RecordingDuration": float(seconds),
        "RecordingType": "continuous",
        "iEEGReference": "n/a",
        "ECOGChannelCount": len(CHANNELS),
        "MiscChannelCount": 1,
    }
    base.with_name(base.name + "_ieeg.json").write_text(json.dumps(about))
    return f"{recording}_ieeg{suffix}"


def _signal(
    rng: np.random.Generator, n_samples: int, rate: float, *, has_rhythm: bool
) -> NDArray[np.float64]:
    """Microvolts of standard deviation 50: smooth noise, and a sharp rhythm of 3 Hz in it where ``soz``."""
    noise = lfilter([1.0], [1.0, -0.9], rng.normal(size=n_samples + 200))[200:]
    signal = noise / noise.std()
    if has_rhythm:
        frequency = 3.0 * rng.uniform(0.95, 1.05)
        phase = 2 * np.pi * (frequency * np.arange(n_samples) / rate + rng.uniform())
        sharp = np.exp(3 * np.cos(phase))
        signal = signal + 1.5 * (sharp - sharp.mean()) / sharp.std()
    return np.asarray(50 * signal / signal.std())


def _write_brainvision(base: Path, samples: NDArray[np.float64], rate: float) -> None:
    from pybv import write_brainvision

    write_brainvision(
        data=samples * 1e-6,
        sfreq=rate,
        ch_names=[*CHANNELS, OTHER_TYPE],
        fname_base=base.name,
        folder_out=base.parent,
        unit="µV",
        resolution=0.1,
    )


def _write_edf(path: Path, samples: NDArray[np.float64], rate: float, prefix: str) -> None:
    from edfio import Edf, EdfSignal, Patient

    signals = [
        EdfSignal(row, rate, label=f"{prefix}{name}", physical_dimension="uV")
        for row, name in zip(samples, [*CHANNELS, OTHER_TYPE], strict=True)
    ]
    Edf(signals, patient=Patient(name=CANARIES[0])).write(path)


def _write_channels(path: Path, rate: float) -> None:
    lines = ["name\ttype\tunits\tlow_cutoff\thigh_cutoff\tsampling_frequency\tstatus\tstatus_description"]
    for name in [*CHANNELS, OTHER_TYPE]:
        kind = "MISC" if name == OTHER_TYPE else "ECOG"
        status = "bad\texcel-file-labeled" if name in (BAD, OTHER_TYPE) else "good\tn/a"
        lines.append(f"{name}\t{kind}\tµV\t0.0\t{rate / 2}\t{rate}\t{status}")
    _write_lines(path, lines)


def _write_events(path: Path, centre: str, onset: float, end: float) -> None:
    _, _, begins, ends = CENTRES[centre]
    texts = [
        (0.0, f"Segment: REC START {CANARIES[1]} EEG"),
        (0.0, "A1+A2 OFF"),
        (onset, begins),
        (onset + 1.5, "clinical onset"),
        (end, ends),
    ]
    _write_lines(path, ["onset\tduration\ttrial_type", *(f"{second}\t0.0\t{text}" for second, text in texts)])


def _write_sheet(path: Path, rows: list[list[object]]) -> None:
    from openpyxl import Workbook

    book = Workbook()
    sheet = book.active
    assert sheet is not None
    sheet.append(
        [
            "dataset_id",
            "patient_name",
            "birth_date",
            "clinical_center",
            "outcome",
            "engel_score",
            "soz_contacts",
        ]
    )
    for row in rows:
        sheet.append(row)
    book.save(path)


def _write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
