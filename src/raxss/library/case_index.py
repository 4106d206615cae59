"""Case index: the cases of a library made ready for votes, in one state of the library.

    CaseLibrary -> CaseIndex: keys standardised -> CaseSearch; labels and groups -> LabelledCases; times, names
    features of a series (n, d) -> standardised -> CaseIndex.nearest -> NearestCases, visible cases -> CaseScore

Nothing is written. `CaseLibrary.state` changes when groups come or leave; then an index is made anew.
"""

from __future__ import annotations

import copy
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from dataclasses import replace as replace_fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss.data.series import Series
from raxss.errors import LibraryError, did_you_mean
from raxss.library.case_library import CaseLibrary
from raxss.library.cases import Cases, Standardisation
from raxss.library.pseudonyms import UNITS, unit_and_group
from raxss.library.search import CaseLists, CaseSearch, NearestCases
from raxss.library.vote_settings import LIBRARY, SITE, VoteSettings
from raxss.library.votes import Flags, Integers, LabelledCases, visible_cases

NOT_IN_LIBRARY = ""  # the group of a series that is known to be of none in the library; no pseudonym is empty

NO_NAME = re.compile(
    r"(series|row)( \d+)?|"
)  # what a `Series`, a list and an array call a series without one


@dataclass(frozen=True, eq=False, kw_only=True)
class OwnCases:
    """Which groups of a library are a series' own, and whether there may be further ones.

    ``unknown``: the key file is missing, the series has no more than a default name, or it is known by another unit
    than some group of the library, by its patient where that is a recording for instance, or the other way round.
    Pseudonyms of two units do not tell whether they are of one person, so cases of the same patient may vote.
    """

    groups: tuple[str, ...] = ()
    unknown: bool = False

    @classmethod
    def of(cls, series: Series, library: CaseLibrary, index: CaseIndex) -> OwnCases:
        """Own groups by the key file, where it is at hand; those that the index knows.

        The library may have changed since the index was made: a group that was withdrawn while series are scored
        has its cases in the index still, and must not vote for itself; one that was added has none there.
        """
        if not library.has_key_file:
            return cls(unknown=True)
        unit, group = unit_and_group(series)
        nameless = unit == UNITS[-1] and NO_NAME.fullmatch(str(group)) is not None
        known, then = set(index.labelled.group_names), index.opened or library
        return cls(
            groups=tuple(name for name in then.own_groups(series) if name in known),
            unknown=nameless or any(other != unit for other in index.group_units),
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class CaseIndex:
    """All cases of a library, searchable.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from raxss import RAxSSClassifier
    >>> from raxss.data.datasets import load_synthetic
    >>> series = load_synthetic(8)
    >>> model = RAxSSClassifier(backbone="ridge", window_length=64, stride=32, random_state=0).fit(series)
    >>> folder = Path(tempfile.mkdtemp()) / "library"
    >>> library = CaseLibrary.build(model, series, folder=folder, site="bern", windows_a_recording=4)
    >>> index = CaseIndex.of(library)
    >>> index.search
    CaseSearch(8 cases of 8 groups, 32 keys of 16, cosine)
    >>> index.own_keys(2).shape, index.labelled.labels.sum()
    ((4, 16), np.int64(4))
    """

    library: str  # id
    state: str
    sites: tuple[str, ...]
    classes: tuple[Any, ...]
    search: CaseSearch
    labelled: LabelledCases
    case_names: tuple[str, ...]  # pseudonyms of the recordings, one a case
    case_sites: tuple[str, ...]  # one a case
    digests: tuple[str, ...]  # one a case
    group_units: tuple[str, ...]  # one a group
    start_s: NDArray[np.float64]  # (n_keys,)
    end_s: NDArray[np.float64]  # (n_keys,)
    key_case: Integers  # (n_keys,)
    standardise_by: str
    standardisations: Mapping[str, Standardisation]  # by site; "" is that of the library
    blocks: tuple[NDArray[np.float32], ...] = field(repr=False)  # standardised keys, one block a group
    opened: CaseLibrary | None = None  # with the groups that it had then, for `OwnCases`

    @classmethod
    def of(
        cls,
        library: CaseLibrary,
        *,
        standardise_by: str = LIBRARY,
        standardisations: Mapping[str, Standardisation] | None = None,
    ) -> CaseIndex:
        """Read all cases once and make them searchable.

        Parameters
        ----------
        standardise_by
            See `VoteSettings`.
        standardisations
            In place of those of the library as it is now, to compare libraries with standardisation held.
        """
        opened, state = copy.copy(library), library.state
        if len(library) == 0:
            raise LibraryError(
                f"the library {library.folder.name!r} has no cases: every group was withdrawn, or its build was "
                "interrupted. Add labelled recordings, or predict with the model alone."
            )
        by_site = library.sites if standardise_by == SITE else ()
        held = dict(standardisations or {})
        for site in ("", *by_site):
            if site not in held:
                held[site] = library.standardisation(site or None)
        keys, blocks = [], []
        for block in library.blocks():
            keys.append(np.empty((len(block), block.width), dtype=np.float32))
            for number, site in enumerate(block.site_names):
                rows = block.site == number
                keys[-1][rows] = held[site if by_site else ""].apply(block.keys[rows])
            # Only what is standardised stays in memory; the file's own keys do not.
            blocks.append(replace_fields(block, keys=np.zeros((len(block), 0), np.float32)))
        joined = Cases.joined(blocks)
        bounds = np.cumsum([0, *map(len, keys)])
        groups = [joined.group_names[group] for group in joined.case_groups]
        sites = tuple(joined.site_names[site] for site in joined.case_sites)
        search = CaseSearch(
            [
                (part, joined.case[low:high])
                for part, low, high in zip(keys, bounds[:-1], bounds[1:], strict=True)
            ],
            groups=groups,
            sites=sites,
            contents=joined.digests,
        )
        assert search.groups == joined.group_names, "blocks come in the order of groups, each with a case"
        return cls(
            library=library.id,
            state=state,
            sites=library.sites,
            classes=library.classes,
            search=search,
            labelled=LabelledCases(
                joined.case_labels, joined.case_groups, joined.group_names, n_classes=len(library.classes)
            ),
            case_names=joined.case_names,
            case_sites=sites,
            digests=joined.digests,
            group_units=joined.group_units,
            start_s=joined.start_s,
            end_s=joined.end_s,
            key_case=joined.case,
            standardise_by=standardise_by,
            standardisations=held,
            blocks=tuple(keys),
            opened=opened,
        )

    def __len__(self) -> int:
        return len(self.labelled)

    def own_keys(self, case: int) -> NDArray[np.float32]:
        """``(n_windows, d)`` standardised keys of one case."""
        order, starts, first_of_block = self._layout
        rows = order[starts[case] : starts[case + 1]]
        block = int(np.searchsorted(first_of_block, rows[0], "right")) - 1  # all keys of a case are in one
        return self.blocks[block][rows - first_of_block[block]]

    @functools.cached_property
    def key_norms(self) -> NDArray[np.float64]:
        """``(n_keys,)`` norms of the standardised keys."""
        return np.concatenate([norms_of(block) for block in self.blocks])

    @functools.cached_property
    def _layout(self) -> tuple[Integers, Integers, Integers]:
        """Keys by case, where those of each case begin, and where each block begins."""
        counts = np.bincount(self.key_case, minlength=len(self))
        order = np.argsort(self.key_case, kind="stable")
        return order, np.cumsum([0, *counts]), np.cumsum([0, *map(len, self.blocks)])

    def check(self, settings: VoteSettings) -> None:
        """Raise where settings name a site or a number of classes that the library does not have."""
        if settings.local_site is not None and settings.local_site not in self.sites:
            raise LibraryError(
                f"the library has no site {settings.local_site!r}{did_you_mean(settings.local_site, self.sites)}"
            )
        _ = self.labelled.weights(prior=settings.prior)  # which checks the number of classes

    def standardisation_of(self, series: Series, settings: VoteSettings) -> Standardisation:
        """By which the features of a series are standardised."""
        site = settings.local_site or str(series.origin.get("centre", ""))
        return self.standardisations.get(site, self.standardisations[""])

    def visible(self, own: OwnCases, digest: str) -> Flags:
        """``(n_cases,)`` cases that a series of these groups and this content may see."""
        return visible_cases(self.labelled, self.digests, own_groups=own.groups, digest=digest)

    def nearest(
        self, queries: ArrayLike, settings: VoteSettings, *, own: OwnCases, digest: str
    ) -> NearestCases:
        """The cases nearest to the windows of one series, standardised ``(n_windows, d)``."""
        others = np.isin(
            self.labelled.groups, [self.labelled.group_names.index(name) for name in own.groups[1:]]
        )
        return self.search.nearest(
            queries,
            groups=[own.groups[0] if own.groups else None if own.unknown else NOT_IN_LIBRARY],
            contents=[digest],
            excluded=[others],
            **self._settings(settings),
        )

    def nearest_of_cases(
        self, cases: Integers, settings: VoteSettings, *, most_windows: int
    ) -> list[tuple[NearestCases, NDArray[np.float64]]]:
        """The cases of other groups nearest to stored windows of each of some cases, spread evenly.

        At most ``most_windows`` of a case, at least 2 as a rule; so the cost of leave-one-group-out is bounded.
        With the norms of these windows.
        """
        queries = []
        for case in cases:
            own = self.own_keys(int(case))
            n = min(len(own), most_windows)
            queries.append(own[np.linspace(0, len(own) - 1, n).round().astype(np.int64)])
        lengths = [len(part) for part in queries]
        names = self.labelled.group_names
        found = self.search.nearest(
            np.concatenate(queries),
            series=np.repeat(np.arange(len(cases)), lengths),
            groups=[names[self.labelled.groups[case]] for case in cases],
            contents=[self.digests[case] for case in cases],
            **self._settings(settings),
        )
        ends = np.cumsum(lengths)
        return [
            (rows_of(found, slice(end - len(part), end)), norms_of(part))
            for end, part in zip(ends, queries, strict=True)
        ]

    def _settings(self, settings: VoteSettings) -> dict[str, Any]:
        return {
            "n_cases": settings.n_cases,
            "most_a_group": settings.most_a_group,
            "local_site": settings.local_site,
        }


def norms_of(features: NDArray[np.float32]) -> NDArray[np.float64]:
    """``(n,)`` norms of the rows, in float64.

    >>> norms_of(np.array([[3, 4]], np.float32))
    array([5.])
    """
    return np.sqrt(np.einsum("ij,ij->i", features, features, dtype=np.float64))


def rows_of(nearest: NearestCases, rows: slice) -> NearestCases:
    """The lists of some queries."""
    fetched = nearest.fetched
    return replace_fields(
        nearest,
        fetched=CaseLists(fetched.cases[rows], fetched.keys[rows], fetched.similarity[rows]),
        **{
            name: getattr(nearest, name)[rows]
            for name in ("n_own_group", "n_excluded", "n_eligible", "group_unknown")
        },
    )
