"""`CaseLibrary`: labelled windows of other recordings as keys, in a folder that patients can leave.

    fitted model, labelled series -> build, add -> folder -> open -> cases(), blocks(), standardisation()
                                     withdraw   -> the folder of a library that never had the group

A library holds features of windows as the encoder gives them; mean and scale are computed from them when they are
needed, so one group's leaving changes no byte of another's. For the same content and key file library.json,
policy.toml and patients/ have the same bytes, whatever was added or withdrawn in which order. Opening reads two
small files and the list of groups; keys are mapped into memory when they are asked for.

Consent, encryption, the log and the enforcement of the policy are not here yet: folder.py keeps the names of their
files, policy.py what is asked, and every read of keys goes through `CaseLibrary.blocks`.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, Self

from raxss._core.atomic import canonical_hash
from raxss._core.memory import refuse_too_large
from raxss._core.outputs import absolute, make_folder, output_lock
from raxss.data.series import Series
from raxss.errors import LibraryError, did_you_mean, display_name, join_names
from raxss.library.additions import (
    Added,
    Planned,
    compared,
    encoded_rows,
    planned,
    warn_of_content,
    warn_of_copies,
)
from raxss.library.cases import Cases, Standardisation
from raxss.library.encoder import FACTS, Encoder, as_encoder
from raxss.library.folder import LibraryFacts, LibraryFolder, plain_class
from raxss.library.patient_file import (
    CaseFacts,
    Patient,
    PatientHeader,
    Rows,
    patient_bytes,
    read_header,
    read_patient,
)
from raxss.library.policy import Policy
from raxss.library.pseudonyms import (
    UNITS,
    Pseudonyms,
    key_beside,
    make_key_file,
    new_key,
    possible_groups,
    read_key_file,
)
from raxss.library.selection import SPREAD, Selection

BYTES_BESIDE_A_KEY = 64  # of a row of `Cases`: indices, times, quality


class CaseLibrary:
    """A case library in a folder, bound to one encoder.

    Groups and recordings have pseudonyms, made with a key file that lies outside the folder; it is needed to add
    recordings and to find a group by its name, not to read. Groups are patients where those are known, else pairs,
    else recordings (`unit`); people of two sites are two groups, even if they are called alike.

    Attributes
    ----------
    folder, id, name, encoder, classes, width, selection, policy
        ``id`` stays the same as long as the library exists; ``encoder`` is the fingerprint of the model that made
        the keys, ``classes`` are those it knows, ``width`` is the number of features of a key.
    groups, sites, unit
        Pseudonyms of the groups, names of the sites, and what a group is: ``"recording"`` or ``"pair"`` as soon as
        one of them is no more than that.

    Examples
    --------
    >>> import tempfile
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(backbone="ridge", window_length=64, stride=32, random_state=0).fit(series)
    >>> folder = Path(tempfile.mkdtemp()) / "library"
    >>> library = CaseLibrary.build(model, series, folder=folder, site="bern", windows_a_recording=4)
    >>> library
    CaseLibrary('library', 8 groups, each a patient, of bern)
    >>> cases = library.cases()
    >>> cases.keys.shape == (32, library.width), cases.case_labels.sum()
    (True, np.int64(4))
    >>> library.withdraw(library.groups[0])
    1
    >>> len(CaseLibrary.open(folder).cases())
    28
    """

    def __init__(self, folder: Path | str, *, key_file: Path | str | None = None) -> None:
        self._folder = LibraryFolder(folder)
        self._facts = self._folder.facts()
        self.policy = self._folder.policy()
        self.groups: tuple[str, ...] = self._folder.groups()
        self._key_file = key_beside(self.folder) if key_file is None else absolute(key_file)

    # Making and opening -------------------------------------------------------------------------------------

    @classmethod
    def open(cls, folder: Path | str, *, key_file: Path | str | None = None) -> Self:
        """Open a library: library.json, policy.toml and the list of groups are read, and nothing else.

        Parameters
        ----------
        key_file
            Needed to add recordings and to find a group by its name. None: ``NAME.key`` beside the folder, if it is
            there.
        """
        return cls(folder, key_file=key_file)

    @classmethod
    def build(
        cls,
        model: Any,
        series: Sequence[Series],
        *,
        folder: Path | str,
        site: str | None = None,
        key_file: Path | str | None = None,
        make_key: bool | None = None,
        windows_a_recording: int = 24,
        selection: str = SPREAD,
        seed: int = 0,
        policy: Policy | None = None,
        name: str = "",
    ) -> Self:
        """Build a library of labelled series, or complete a build of the same that was interrupted.

        Parameters
        ----------
        model
            A fitted `RAxSSClassifier`, or an `Encoder`.
        series
            Labelled; prepared as the model's training data were.
        folder
            Must not exist, or be empty, or hold a part of this very library.
        site
            Where the recordings come from. None: the centre of each series, ``"local"`` where it has none.
        key_file
            Outside the folder. None: ``NAME.key`` beside it.
        make_key
            Make the key file if it is missing. None: only where ``key_file`` is not given.
        windows_a_recording, selection, seed
            At most so many windows of each recording become cases: ``"spread"`` over its time, or by
            ``"k-medoids"`` of their features, from first medoids drawn by the seed.
        policy
            What the library may be used for, written to policy.toml; None: `Policy()`.
        name
            Part of the id, which is otherwise the same for every library under one key file that has the same
            encoder and selection, whatever its recordings. Give each of several libraries a name of its own, one a
            fold for instance: else a model takes one for the other.
        """
        encoder, place = as_encoder(model), LibraryFolder(folder)
        settings = Selection(windows_a_recording=windows_a_recording, selection=selection, seed=seed)
        key_path = key_beside(place.path) if key_file is None else absolute(key_file)
        makes_key = (key_file is None if make_key is None else make_key) and not key_path.exists()
        key = new_key() if makes_key else b""
        names = Pseudonyms(key) if makes_key else read_key_file(key_path, place.path)
        classes = tuple(map(plain_class, encoder.classes))
        plans = planned(list(series), names, classes, site)
        if not place.exists:
            place.refuse_other_content()
        if makes_key:  # only now, when nothing of what was given is refused any more
            make_key_file(key_path, place.path, key)
        facts = LibraryFacts(
            id=_id_of(names, name, encoder.fingerprint, settings),
            name=name,
            encoder=encoder.fingerprint,
            width=encoder.n_features,
            classes=classes,
            model={entry: encoder.facts[entry] for entry in FACTS if entry in encoder.facts},
            selection=settings,
        )
        make_folder(place.path.parent)
        with output_lock(place.path):
            if not place.exists:
                place.refuse_other_content()
                place.create(facts, policy or Policy())
            library = cls(place.path, key_file=key_path)
            library._refuse_other_build(facts, plans, policy)
            library._add(encoder, plans, replacing=False)
        return library

    # What it is ---------------------------------------------------------------------------------------------

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self._folder.path

    @property
    def id(self) -> str:
        """Thirty-two hexadecimal digits by which models refer to it; adding and withdrawing leave them."""
        return self._facts.id

    @property
    def name(self) -> str:
        """As given to `build`; may be empty."""
        return self._facts.name

    @property
    def encoder(self) -> str:
        """Fingerprint of the encoder that made the keys."""
        return self._facts.encoder

    @property
    def classes(self) -> tuple[Any, ...]:
        """Labels that the encoder knows, in the order of its posteriors."""
        return self._facts.classes

    @property
    def width(self) -> int:
        """Number of features of a key."""
        return self._facts.width

    @property
    def facts(self) -> Mapping[str, Any]:
        """Window length, stride, rates, preparation and number of variates of the encoder, as far as it said."""
        return self._facts.model

    @property
    def selection(self) -> Selection:
        """How windows of a recording were selected."""
        return self._facts.selection

    @property
    def sites(self) -> tuple[str, ...]:
        """Names of the sites, in order."""
        return self._facts.sites

    @property
    def unit(self) -> str:
        """What all groups are at least: ``"patient"`` only where the patient of every one is known."""
        return max(self._facts.units, key=UNITS.index, default=UNITS[-1])

    @property
    def has_key_file(self) -> bool:
        """Whether the key file is at hand, without which no group is found by its name."""
        return self._key_file.exists()

    @property
    def state(self) -> str:
        """Hash over the files of all groups: other after `add` or `withdraw`, whatever the order they came in.

        Models note the state that they were fitted on. It is taken from the headers of the files; whether these are
        whole is checked where their keys are read.
        """
        return canonical_hash(sorted((group, header.digest) for group, header in self._headers().items()))

    def __len__(self) -> int:
        return len(self.groups)

    def __repr__(self) -> str:
        plural = "group" if len(self) == 1 else "groups"
        sites = join_names(self.sites, 3) or "no site"
        return f"CaseLibrary({self.folder.name!r}, {len(self)} {plural}, each a {self.unit}, of {sites})"

    # Reading cases ------------------------------------------------------------------------------------------

    def blocks(self, *, site: str | None = None) -> Iterator[Cases]:
        """The cases of one group after the other, in the order of `groups`; of one site, or of all.

        Keys are views of the mapped file, which is checked byte for byte first. Indices are within the block;
        `Cases.joined` puts blocks together.
        """
        self._check_site(site)
        for group in self.groups:
            if site is None or self._header(group).site == site:
                yield self._patient(group).cases(self.classes)

    def cases(self, *, site: str | None = None) -> Cases:
        """All cases, in memory; of one site, or of all."""
        self._check_site(site)
        headers = self._headers().values()
        n = sum(header.n_windows for header in headers if site is None or header.site == site)
        if n == 0:
            raise LibraryError(
                f"the library {self._folder.name!r} has no cases: every group was withdrawn, or its build was "
                "interrupted. Add labelled recordings, or run the build again."
            )
        refuse_too_large(
            n * (4 * self.width + BYTES_BESIDE_A_KEY) * 2,  # the blocks, and what they are joined to
            f"holding {n:,} cases of {self.width:,} features",
            "Use blocks(), which holds one group at a time.",
        )
        return Cases.joined(list(self.blocks(site=site)))

    def standardisation(self, site: str | None = None) -> Standardisation:
        """Mean and scale of the keys, every group counting the same; of one site, or of all.

        Computed from the keys each time and never stored, so it is that of the groups which are there now.
        """
        return Standardisation.of(block.keys for block in self.blocks(site=site))

    def own_groups(self, series: Series) -> tuple[str, ...]:
        """Groups of the library that a series may belong to, by its patient, pair, recording or name at any site.

        For leaving the own group out of what is retrieved: rather one too many than one too few, so each of its
        names is tried as the name of a patient, a pair and a recording, alone and within another. Needs the key
        file.
        """
        names = self._names()
        known = possible_groups(series)
        found = {
            names.of_group(site, unit, group) for site in self.sites for unit in UNITS for group in known
        }
        return tuple(sorted(found & set(self.groups)))

    # Checks -------------------------------------------------------------------------------------------------

    def check_encoder(self, encoder: Any) -> None:
        """Raise unless the keys were made by this encoder (a fitted model will do): others cannot be compared."""
        encoder = as_encoder(encoder)
        different = [
            f"{name} {self.facts[name]!r} there, {encoder.facts[name]!r} here"
            for name in self.facts
            if name != "rates" and encoder.facts.get(name, self.facts[name]) != self.facts[name]
        ]
        if encoder.n_features != self.width:
            different.append(f"{self.width} features there, {encoder.n_features} here")
        if encoder.fingerprint != self.encoder:
            details = "; ".join(different) or "other weights or settings"
            raise LibraryError(
                f"the library {self._folder.name!r} was built with another model ({details}): its encoder is "
                f"{self.encoder[:12]}, this one is {encoder.fingerprint[:12]}. Keys of two encoders cannot be "
                "compared. Use the model that it was built with, or build a library with this one."
            )
        classes = tuple(map(plain_class, encoder.classes))
        if classes != self.classes:
            raise LibraryError(
                f"the library {self._folder.name!r} has cases of the classes "
                f"{join_names(map(repr, self.classes))}, but the model knows {join_names(map(repr, classes))}. Use "
                "the model that it was built with, or build a library with this one."
            )

    def check_votes(self) -> None:
        """Raise unless there are cases of two classes at least: those of one say the same whatever comes."""
        labels = {item.label for header in self._headers().values() for item in header.recordings}
        if len(labels) < 2:
            found = f"only of the class {self.classes[min(labels)]!r}" if labels else "of no class"
            raise LibraryError(
                f"the library {self._folder.name!r} has cases {found}; votes need two classes at least. Add "
                "labelled recordings of another class."
            )

    # Adding and withdrawing ---------------------------------------------------------------------------------

    def add(
        self, model: Any, series: Sequence[Series], *, site: str | None = None, replace: bool = False
    ) -> Added:
        """Add labelled recordings; those that are there with the same samples and label stay as they are.

        Group by group: one that was interrupted is completed by the same call. If the process was killed, `sites`
        may have one without cases until the next addition or withdrawal.

        Parameters
        ----------
        model
            The fitted model, or the encoder, that the library was built with.
        series
            Labelled; prepared as the model's training data were.
        site
            As in `build`.
        replace
            Take the new one where a recording of the same group, name and origin has other samples or another
            label, which is an error otherwise.
        """
        encoder = as_encoder(model)
        self.check_encoder(encoder)
        plans = planned(list(series), self._names(), self.classes, site)
        with output_lock(self.folder):
            self.refresh()
            return self._add(encoder, plans, replacing=replace)

    def withdraw(self, group: Hashable, *, site: str | None = None) -> int:
        """Remove a group with all its recordings; returns how many these were, 0 where its file was damaged.

        Parameters
        ----------
        group
            A pseudonym of `groups`, or, where the key file is at hand, the patient, pair or recording itself.
        site
            Where a group of this name is at several sites: which one.
        """
        with output_lock(self.folder):
            self.refresh()
            there = {*self.groups, *self._folder.left_groups()}  # those of a withdrawal that was interrupted
            pseudonym = self._find(group, site, there)
            self._folder.clean()
            n_recordings = 0
            if pseudonym is not None and pseudonym in self.groups:
                with suppress(LibraryError):  # one that is damaged may leave as well
                    n_recordings = len(self._header(pseudonym).recordings)
                self._folder.take_away(pseudonym)
            try:
                self._settle()
            except LibraryError as error:
                raise LibraryError(
                    f"{'the group was removed' if pseudonym else 'nothing was removed'}, but another one of the "
                    f"library {self._folder.name!r} is damaged: {error}"
                ) from error
        if pseudonym is None:
            raise LibraryError(
                f"the group {display_name(str(group))} is not in the library {self._folder.name!r}, of "
                f"{len(self.groups)} groups. Give one of library.groups, or the name that it was added by, as text "
                "and with the key file of the library."
            )
        return n_recordings

    def _add(self, encoder: Encoder, plans: list[Planned], *, replacing: bool) -> Added:
        """Encode and write what is new; the lock is held."""
        self._folder.clean()
        headers = self._headers()
        left_out: list[Planned] = []
        n_windows = 0
        try:
            found = compared(plans, headers, replace=replacing)
            warn_of_copies(found.copies)
            encoded = encoded_rows(encoder, found, self.selection, width=self.width)
            # Before the groups, so that none is of a site that library.json does not know.
            self._write_facts([*headers.values(), *found.new])
            for group, members in itertools.groupby(encoded, key=lambda item: item[0].group):
                rows = list(members)
                left_out += [plan for plan, some in rows if some is None]
                n_windows += sum(0 if some is None else len(some.keys) for _, some in rows)
                self._write_group(group, rows)
                headers.pop(group, None)
        except BaseException:
            with suppress(LibraryError, OSError):  # what went wrong first is what is told
                self._settle()
            raise
        self._settle(headers)
        warn_of_content(headers.values(), self.classes, [plan.series.name for plan in left_out])
        return Added.of(found, left_out, n_windows)

    def _write_group(self, group: str, new: list[tuple[Planned, Rows | None]]) -> None:
        """Write a group with its new recordings among those that it has."""
        plan = new[0][0]
        held: dict[str, tuple[CaseFacts, Rows]] = {}
        if group in self.groups:
            held = {item.name: (item, rows) for item, rows in self._patient(group).recordings()}
        for entry, rows in new:
            held.pop(entry.recording, None)
            if rows is not None:
                recording = CaseFacts(
                    name=entry.recording,
                    content=entry.content,
                    label=entry.label,
                    n_windows=len(rows.keys),
                )
                held[entry.recording] = (recording, rows)
        if not held:
            if group in self.groups:
                self._folder.take_away(group)
            return
        ordered = [held[name] for name in sorted(held)]
        header = PatientHeader(
            group=group,
            unit=plan.unit,
            site=plan.site,
            encoder=self.encoder,
            recordings=tuple(item for item, _ in ordered),
        )
        self._folder.put(group, patient_bytes(Patient(header, Rows.joined([rows for _, rows in ordered]))))

    def _settle(self, known: dict[str, PatientHeader] | None = None) -> None:
        """Bring groups, sites and units to what is there.

        Headers that are ``known`` are not read again; those of the other groups are added to them.
        """
        self.groups = self._folder.groups()
        headers = {} if known is None else known
        headers.update({group: self._header(group) for group in self.groups if group not in headers})
        self._write_facts(headers.values())

    def _write_facts(self, parts: Iterable[PatientHeader | Planned]) -> None:
        pairs = [(part.site, part.unit) for part in parts]
        sites, units = {site for site, _ in pairs}, {unit for _, unit in pairs}
        facts = replace_fields(self._facts, sites=tuple(sorted(sites)), units=tuple(sorted(units)))
        self._folder.write_facts(facts)
        self._facts = facts

    def refresh(self) -> None:
        """Read library.json, policy.toml and the list of groups again.

        Another object or process may have added or withdrawn since this one was opened; it does not notice by
        itself, and `groups`, `sites` and `state` are those from before. Adding and withdrawing refresh first.

        Raises
        ------
        LibraryError
            Where another library is in the folder now, or none.
        """
        facts = self._folder.facts()
        if facts.id != self.id:
            raise LibraryError(
                f"the library {self._folder.name!r} was replaced by another one since it was opened. Open it again."
            )
        self.policy = self._folder.policy()
        self._facts, self.groups = facts, self._folder.groups()

    # Parts --------------------------------------------------------------------------------------------------

    @property
    def _shape(self) -> dict[str, int]:
        return {"n_classes": len(self.classes), "width": self.width}

    def _header(self, group: str) -> PatientHeader:
        header = read_header(self._folder.cases(group), self._folder.name, **self._shape)
        self._check_origin(header)
        return header

    def _patient(self, group: str) -> Patient:
        patient = read_patient(self._folder.cases(group), self._folder.name, **self._shape)
        self._check_origin(patient.header)
        return patient

    def _headers(self) -> dict[str, PatientHeader]:
        return {group: self._header(group) for group in self.groups}

    def _check_origin(self, header: PatientHeader) -> None:
        """A folder of another library may have been copied among those of this one."""
        if header.encoder != self.encoder:
            raise LibraryError(
                f"group {header.group!r} in library {self._folder.name!r} was encoded by another model "
                f"({header.encoder[:12]!r}, needed is {self.encoder[:12]!r}): its folder came from another "
                "library. Remove it, and add its recordings with the model of this library."
            )

    def _check_site(self, site: str | None) -> None:
        if site is not None and site not in self.sites:
            raise LibraryError(
                f"the library {self._folder.name!r} has no site {site!r}{did_you_mean(site, self.sites)}"
            )

    def _names(self) -> Pseudonyms:
        """The pseudonyms under the key file, if it is the one that the library was built with."""
        names = read_key_file(self._key_file, self.folder)
        if _id_of(names, self.name, self.encoder, self.selection) != self.id:
            raise LibraryError(
                f"the key file {display_name(self._key_file)} is of another library than {self._folder.name!r}: a "
                "group would get a second pseudonym. Give the key file that it was built with, as key_file=..."
            )
        return names

    def _find(self, group: Hashable, site: str | None, there: Container[str]) -> str | None:
        """The pseudonym of a group, given itself or by name; None where it is not ``there``."""
        self._check_site(site)
        if isinstance(group, str) and group in there:
            return group
        if not self._key_file.exists():
            return None
        names = self._names()
        found = {
            pseudonym: place
            for place in (self.sites if site is None else (site,))
            for unit in UNITS
            if (pseudonym := names.of_group(place, unit, group)) in there
        }
        if len(found) > 1:
            raise LibraryError(
                f"{len(found)} groups are called {display_name(str(group))}, at "
                f"{join_names(sorted(set(found.values())))}. Say site=...; where one site has several, a patient "
                "and a recording, give one of own_groups(series)."
            )
        return next(iter(found), None)

    def _refuse_other_build(self, facts: LibraryFacts, plans: list[Planned], policy: Policy | None) -> None:
        """A folder that holds a library is taken for an interrupted build only if it holds nothing else."""
        wanted = {plan.recording for plan in plans}
        there = {item.name for header in self._headers().values() for item in header.recordings}
        same = replace_fields(self._facts, sites=(), units=()) == facts
        if not same or (policy or self.policy) != self.policy or not there <= wanted:
            raise LibraryError(
                f"the folder {self._folder.name!r} holds a library already, of other recordings or settings than "
                "those to be built. Choose another folder, or use CaseLibrary.open(folder).add(...) to add to it."
            )


def _id_of(names: Pseudonyms, name: str, encoder: str, selection: Selection) -> str:
    """Without chance: the same for the same key, name, encoder and selection."""
    return names.of("library", name, encoder, canonical_hash(selection.settings))
