"""Exact search for the labelled cases that windows are like.

    keys (n_keys, d) of cases, each of a group -> CaseSearch
    queries (n_queries, d)                     -> NearestCases: cases, keys, similarity (n_queries, m)

A case is another recording, of which several windows are keys. Its similarity to a query is that of its best key:

    s_kj = max_{i of case j} q_k·h_i / (|q_k| |h_i|)      or      max_i -|q_k - h_i|^2

and the list of a query is greedy: cases from the most similar down, without its own group, and no more than c of
any group. How it is found is told in search_values.py (bounds) and search_kernels.py (lists).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from numbers import Number
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

from raxss._core.memory import refuse_too_large
from raxss._core.settings import at_least
from raxss._core.threads import run_on_threads
from raxss.errors import ConfigError, DataError, SignalError, join_names, one_of
from raxss.library.search_kernels import (
    LANES,
    ROWS,
    Columns,
    Errors,
    Rules,
    exact_pairs,
    exclude,
    final_lists,
    first_lists,
    further_cases,
)
from raxss.library.search_keys import MOST_DISTANCE, Block, Keys, read_keys
from raxss.library.search_values import ROWS_AT_ONCE, PreparedQueries, Values, values_of

MEASURES = ("cosine", "euclidean")
_VALUES_AT_ONCE = 2**24  # of one task: 64 MB
_FURTHER = 128  # cases a query for which there is room at first
_PAIRS_AT_ONCE = 2**20  # queries and cases that are compared in float64 together


class CaseLists(NamedTuple):
    """Lists of all queries, each ``(n_queries, m)``, best first."""

    cases: NDArray[np.int64]
    keys: NDArray[np.int64]
    similarity: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class NearestCases:
    """The cases nearest to each query.

    Attributes
    ----------
    fetched
        Lists of m cases and what follows them, in case a group is left out: ``(n_queries, m + spare)`` each.
        *cases*, best first, of equals the earlier; *keys*, the number of each case's best key, of equals the
        earliest; *similarity* in float64. -1, -1 and NaN where there is no further case.
    n_cases
        m.
    n_own_group
        ``(n_queries,)`` cases that were left out because they are of the query's own group.
    n_excluded
        ``(n_queries,)`` further cases that were left out: by content, or because they were named.
    n_eligible
        ``(n_queries,)`` cases that remained. Where it is 0, the query has no cases and must not vote.
    group_unknown
        ``(n_queries,)`` the group of the query is not known, so that its own cases may be among those listed.
    case_groups, groups
        ``(n_cases,)`` the number of each case's group, and the names of all groups.

    All arrays are read-only.
    """

    fetched: CaseLists
    n_cases: int
    n_own_group: NDArray[np.int64]
    n_excluded: NDArray[np.int64]
    n_eligible: NDArray[np.int64]
    group_unknown: NDArray[np.bool_]
    case_groups: NDArray[np.int64]
    groups: tuple[Hashable, ...]

    def __post_init__(self) -> None:
        for value in (*self.fetched, *vars(self).values()):
            if isinstance(value, np.ndarray):
                value.setflags(write=False)

    @property
    def cases(self) -> NDArray[np.int64]:
        """``(n_queries, m)`` numbers of cases."""
        return self.fetched.cases[:, : self.n_cases]

    @property
    def keys(self) -> NDArray[np.int64]:
        """``(n_queries, m)`` numbers of their best keys."""
        return self.fetched.keys[:, : self.n_cases]

    @property
    def similarity(self) -> NDArray[np.float64]:
        """``(n_queries, m)`` similarities."""
        return self.fetched.similarity[:, : self.n_cases]

    @property
    def empty(self) -> NDArray[np.bool_]:
        """``(n_queries,)`` queries without any eligible case."""
        return self.n_eligible == 0

    def without(self, group: Hashable) -> CaseLists:
        """What the library without this group answers, to the last bit; m cases a query.

        Raises
        ------
        ConfigError
            Where more cases of the group are listed than there are spare ones.
        """
        code = self.groups.index(group) if group in self.groups else -1
        cases = self.fetched.cases
        leaves = (cases >= 0) & (self.case_groups[cases] == code)
        n_spare = cases.shape[1] - self.n_cases
        short = (cases[:, -1] >= 0) & (leaves.sum(axis=1) > n_spare)
        if short.any():
            query = int(np.argmax(short))
            raise ConfigError(
                f"{int(leaves[query].sum())} cases of group {group!r} are listed for query {query}, but only "
                f"{n_spare} are spare, and without the group the list would be too short. Search with "
                "most_a_group, or a larger spare."
            )
        # Those that leave go to the end, all others keep their order.
        order = np.argsort(leaves, axis=1, kind="stable")[:, : self.n_cases]
        gone = np.take_along_axis(leaves, order, axis=1)
        lists = CaseLists(
            np.take_along_axis(cases, order, axis=1),
            np.take_along_axis(self.fetched.keys, order, axis=1),
            np.take_along_axis(self.fetched.similarity, order, axis=1),
        )
        lists.cases[gone], lists.keys[gone], lists.similarity[gone] = -1, -1, np.nan
        return lists

    def __repr__(self) -> str:
        notes = {"empty": self.empty, "of an unknown group": self.group_unknown}
        noted = "".join(f", {int(which.sum())} {what}" for what, which in notes.items() if which.any())
        return f"NearestCases({len(self.cases)} queries, {self.n_cases} cases each{noted})"


class CaseSearch:
    """Labelled cases made ready for search.

    Parameters
    ----------
    blocks
        Keys ``(n, d)`` with the case of each ``(n,)``, in any number of blocks; all keys of a case are in one.
        Keys are numbered block after block. Blocks are kept as they are where they are float32 (and may be
        memory-mapped), and read a part at a time.
    groups
        The group of each case, ``(n_cases,)``: the patient where that is known.
    sites
        The site of each case.
    contents
        A digest of each case's recording, or None; a series with the same one does not see the case.
    measure
        ``"cosine"``, which is 0 for a vector of zeros, or ``"euclidean"``, the negative squared distance.
    device
        Where values are computed: ``"cpu"``, or a CUDA device. Lists are the same.

    Examples
    --------
    Three cases of two patients; the second case has two keys.

    >>> keys, cases = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8], [1.0, 1.0]], [0, 1, 1, 2]
    >>> search = CaseSearch([(keys, cases)], groups=["ann", "ann", "bob"])
    >>> found = search.nearest([[3.0, 4.0]], n_cases=2)
    >>> found.cases.tolist(), found.keys.tolist(), found.similarity.round(3).tolist()
    ([[1, 2]], [[2, 3]], [[1.0, 0.99]])
    >>> search.nearest([[3.0, 4.0]], n_cases=2, groups=["bob"], most_a_group=1).cases.tolist()
    [[1, -1]]

    Raises
    ------
    DataError
        Where keys, cases and what is said of cases do not fit each other, or are too large for the memory.
    """

    def __init__(
        self,
        blocks: Sequence[Block],
        groups: Sequence[Hashable],
        *,
        sites: Sequence[Hashable] | None = None,
        contents: Sequence[Hashable | None] | None = None,
        measure: str = "cosine",
        device: str | torch.device = "cpu",
    ) -> None:
        one_of("measure", measure, MEASURES)
        self.measure = measure
        self._keys = read_keys(blocks, len(groups))
        if measure == "euclidean":
            _check_magnitude(self._keys.norms, "key")
        self.groups = tuple(dict.fromkeys(groups))
        self._group_of = {name: number for number, name in enumerate(self.groups)}
        self._case_groups = np.array([self._group_of[name] for name in groups], np.int64)
        self._sites = _one_each(sites, len(groups), "sites")
        self._of_content: dict[Hashable, list[int]] = {}
        for case, content in enumerate(_one_each(contents, len(groups), "contents")):
            if content is not None:
                self._of_content.setdefault(content, []).append(case)
        self._values = _values_on(torch.device(device), self._keys, cosine=measure == "cosine")

    @property
    def n_cases(self) -> int:
        """How many cases there are."""
        return self._keys.n_cases

    @property
    def n_keys(self) -> int:
        """How many keys they have."""
        return self._keys.n_keys

    def __repr__(self) -> str:
        return (
            f"CaseSearch({self.n_cases:,} cases of {len(self.groups):,} groups, {self.n_keys:,} keys of "
            f"{self._keys.width}, {self.measure})"
        )

    def nearest(
        self,
        queries: ArrayLike,
        *,
        n_cases: int = 10,
        series: ArrayLike | None = None,
        groups: Sequence[Hashable | None] | None = None,
        contents: Sequence[Hashable | None] | None = None,
        excluded: Sequence[ArrayLike] | None = None,
        most_a_group: int | None = None,
        local_site: Hashable | None = None,
        spare: int | None = None,
        on_progress: Callable[[float], None] | None = None,
    ) -> NearestCases:
        """The nearest cases of every query, exactly.

        Parameters
        ----------
        queries
            ``(n_queries, d)`` windows of one or more series.
        n_cases
            m, the length of a list.
        series
            ``(n_queries,)`` the series that each is of; None: all are of one. The next three are given by series.
        groups
            Whose cases are left out; None where that is not known: nothing is left out, and the result says so.
            Names need not be there, but must be of the type of those that are: "7" is not 7.
        contents
            Digests, whose cases are left out likewise. Only identical samples have the same: for crops and copies
            in other units use excluded.
        excluded
            Cases that are left out, by number or as booleans ``(n_cases,)``: near-duplicates, for instance.
        most_a_group
            c, the most cases of one group in a list; None: any number.
        local_site
            Cases of this site come before all others, whatever their similarity; others fill up.
        spare
            Cases that are fetched beyond m; None: c, so that any one group can be left out afterwards.

        Raises
        ------
        ConfigError
            Where a number is out of range.
        DataError
            Where queries do not fit the keys, or what is said of series does not fit the series.
        """
        n_cases = _whole("n_cases", n_cases, 1)
        cap = None if most_a_group is None else _whole("most_a_group", most_a_group, 1)
        n_fetched = n_cases + ((cap or 0) if spare is None else _whole("spare", spare, 0))
        vectors = self._checked_queries(queries)
        facts = {"groups": groups, "contents": contents, "excluded": excluded}
        of_query, n_series = _checked_series(series, len(vectors), facts)
        refuse_too_large(
            24 * len(vectors) * n_fetched,
            f"lists of {n_fetched:,} cases for {len(vectors):,} queries",
            "Ask for fewer cases.",
        )
        names = [None] * n_series if groups is None else list(groups)
        self._check_types(names)
        own = [-1 if name is None else self._group_of.get(name, -1) for name in names]
        n_listed = min(n_fetched, self.n_cases)
        rules = Rules(
            n_listed if cap is None else min(cap, n_listed),
            np.array(own, np.int64)[of_query],
            of_query,
            *_cut(self._case_groups, len(self.groups)),
            *self._left_out(contents, excluded, n_series),
        )
        task = _Task(
            self._keys, self._values, self._columns(local_site), rules, vectors, n_listed, self.measure
        )
        task.run(on_progress)
        return NearestCases(
            fetched=_widened(task.lists, n_fetched),
            n_cases=n_cases,
            n_own_group=task.n_own,
            n_excluded=task.n_others,
            n_eligible=self.n_cases - task.n_own - task.n_others,
            group_unknown=np.array([name is None for name in names], bool)[of_query],
            case_groups=self._case_groups.copy(),
            groups=self.groups,
        )

    def _check_types(self, names: Sequence[Hashable | None]) -> None:
        """A name of another type than all groups would be found in none, and nothing be left out."""
        known = {_kind(name) for name in self.groups}
        for series, name in enumerate(names):
            if name is not None and name not in self._group_of and _kind(name) not in known:
                raise DataError(
                    f"the group of series {series} is {name!r}, of type {type(name).__name__}, but groups of cases "
                    f"are of type {join_names(sorted({type(group).__name__ for group in self.groups}))}, as "
                    f"{self.groups[0]!r}. Give both as the same type."
                )

    def _checked_queries(self, queries: ArrayLike) -> NDArray[np.float64]:
        """In float64, of norm 1 or 0 for cosine."""
        vectors = np.array(queries, np.float64)
        width = self._keys.width
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise DataError(
                f"queries have shape {vectors.shape}, but (n_queries, {width}) is needed, as keys have {width} "
                "components. Compute them with the encoder of the library."
            )
        largest = np.abs(vectors).max(axis=1, initial=0.0)
        if not np.isfinite(largest).all():
            raise SignalError(
                f"query {int(np.argmin(np.isfinite(largest)))} is not finite, and such a query is like nothing. "
                "Leave windows without features out."
            )
        if self.measure == "euclidean":
            _check_magnitude(largest, "query")
            return vectors
        vectors = np.ldexp(vectors, -np.frexp(largest)[1][:, np.newaxis])  # squares cannot overflow or vanish
        norms = np.sqrt(np.einsum("ij,ij->i", vectors, vectors))[:, np.newaxis]
        return np.divide(vectors, norms, out=np.zeros_like(vectors), where=norms > 0)

    def _left_out(
        self,
        contents: Sequence[Hashable | None] | None,
        excluded: Sequence[ArrayLike] | None,
        n_series: int,
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Cases that series must not see, cut by series."""
        by_series: list[NDArray[np.int64]] = []
        for series in range(n_series):
            alike = [] if contents is None else self._of_content.get(contents[series], [])
            named = np.asarray([] if excluded is None else excluded[series])
            if named.dtype == bool and named.shape == (self.n_cases,):
                named = np.flatnonzero(named)
            if named.size == 0:
                named = named.astype(np.int64)
            whole = np.issubdtype(named.dtype, np.integer) and named.ndim == 1
            if not whole or (named.size and not 0 <= named.min() <= named.max() < self.n_cases):
                raise DataError(
                    f"excluded of series {series} is of type {named.dtype} and shape {named.shape}, with values "
                    f"from {named.min()} to {named.max()}, but numbers of cases (0 to {self.n_cases - 1}) or "
                    f"{self.n_cases} booleans are needed."
                )
            by_series.append(np.union1d(np.array(alike, np.int64), named.astype(np.int64)))
        starts = np.concatenate([[0], np.cumsum([len(cases) for cases in by_series])])
        return starts, np.concatenate([*by_series, np.empty(0, np.int64)])

    def _columns(self, local_site: Hashable | None) -> Columns:
        """The cases by column; those of a site are local."""
        tiers = np.zeros(self.n_cases, np.int64)
        if local_site is not None:
            if not self._sites:
                raise ConfigError(
                    f"local_site is {local_site!r}, but the site of no case is known. Give sites with the cases."
                )
            tiers = np.array([site == local_site for site in self._sites], np.int64)
        layout = self._values.layout
        return Columns(
            layout.cases,
            layout.places,
            self._case_groups,
            tiers,
            1 + int(tiers.max()),
            layout.residuals,
            layout.lengths,
            layout.bundle_residuals,
            layout.bundle_lengths,
        )


class _Task:
    """One call of `CaseSearch.nearest`: some queries at a time, on threads."""

    def __init__(
        self,
        keys: Keys,
        values: Values,
        columns: Columns,
        rules: Rules,
        queries: NDArray[np.float64],
        n_listed: int,
        measure: str,
    ) -> None:
        n = len(queries)
        self._keys, self._columns, self._rules, self._queries = keys, columns, rules, queries
        self._cosine = measure == "cosine"
        self._prepared: PreparedQueries = values.prepare(queries)
        self._on_threads = values.on_threads
        # A query of zeros is as similar to all: the earliest cases are listed.
        self._blank: NDArray[np.bool_] = (queries == 0).all(axis=1) & self._cosine
        self.lists = CaseLists(
            np.empty((n, n_listed), np.int64), np.empty((n, n_listed), np.int64), np.empty((n, n_listed))
        )
        self.n_own, self.n_others = np.empty(n, np.int64), np.empty(n, np.int64)

    def run(self, on_progress: Callable[[float], None] | None) -> None:
        """Fill the lists."""
        n, n_columns = len(self._queries), len(self._columns.cases)
        n_threads = torch.get_num_threads() if self._on_threads else 1
        each = -(-n // n_threads)
        most = max(_VALUES_AT_ONCE // n_columns, 1)
        n_rows = -(-max(min(each, most, ROWS_AT_ONCE), 1) // ROWS) * ROWS
        firsts = iter(range(0, n, n_rows))

        def work() -> Iterator[None]:
            values = np.empty((n_rows, n_columns), np.float32)
            coarse = np.empty((n_rows, n_columns // LANES), np.float32)
            for first in firsts:
                n_some = min(n_rows, n - first)
                padded = -(-n_some // ROWS) * ROWS
                self._prepared.fill(first, values[:padded], coarse[:padded])
                self._list(slice(first, first + n_some), values[:n_some], coarse[:n_some])
                yield

        run_on_threads(work, n_tasks=-(-n // n_rows), n_threads=n_threads, on_progress=on_progress)

    def _list(self, rows: slice, values: NDArray[np.float32], coarse: NDArray[np.float32]) -> None:
        """Lists of some queries: the best by what they are at least, then all that these cannot rule out."""
        every = self._prepared.errors
        errors = Errors(every.a[rows], every.b[rows], every.c[rows], every.e)
        rules = self._rules._replace(groups=self._rules.groups[rows], series=self._rules.series[rows])
        exclude(values, self._columns, rules, self.n_own[rows], self.n_others[rows])
        listed = self.lists.cases[rows]
        first_lists(values, coarse, self._columns, errors, rules, listed)
        n, m = listed.shape
        which = np.repeat(np.arange(rows.start, rows.stop), m).reshape(n, m)
        there = listed >= 0
        similarity, keys = np.full((n, m), -np.inf), np.full((n, m), -1)
        similarity[there], keys[there] = self._exact(which[there], listed[there])
        counts, blank = np.empty(n, np.int64), self._blank[rows]
        given = values, coarse, self._columns, errors, rules, blank, listed, similarity
        found = np.empty(_FURTHER * n, np.int64)
        n_found = further_cases(*given, counts, found)
        if n_found > len(found):
            found = np.empty(n_found, np.int64)
            further_cases(*given, counts, found)
        ends = np.cumsum(counts)
        first = 0
        while first < n:  # as many rows as may be compared together, or one
            before = int(ends[first] - counts[first])
            end = max(int(np.searchsorted(ends, before + _PAIRS_AT_ONCE, "right")), first + 1)
            some = slice(first, end)
            others = np.repeat(np.arange(first, end), counts[some])
            cases = found[before : ends[end - 1]]
            others_similarity, others_keys = self._exact(others + rows.start, cases)
            row = np.concatenate([np.nonzero(there[some])[0] + first, others])
            order = np.argsort(row, kind="stable")
            starts = np.searchsorted(row[order], np.arange(first, end + 1))
            out = slice(rows.start + first, rows.start + end)
            final_lists(
                starts,
                np.concatenate([listed[some][there[some]], cases])[order],
                np.concatenate([similarity[some][there[some]], others_similarity])[order],
                np.concatenate([keys[some][there[some]], others_keys])[order],
                self._columns,
                rules.most_a_group,
                self.lists.cases[out],
                self.lists.keys[out],
                self.lists.similarity[out],
            )
            first = end

    def _exact(
        self, rows: NDArray[np.int64], cases: NDArray[np.int64]
    ) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Similarity of pairs of a query and a case, and the best key."""
        keys = self._keys
        similarity, best = np.empty(len(rows)), np.empty(len(rows), np.int64)
        blocks = keys.block_of[cases]
        order = np.argsort(blocks * keys.n_cases + cases)  # keys of a case are read once for several queries
        used, starts = np.unique(blocks[order], return_index=True)
        for block, which in zip(used.tolist(), np.split(order, starts[1:]), strict=False):
            place = int(keys.block_starts[block])
            given = which, rows, cases, self._queries, keys.blocks[block], place
            exact_pairs(*given, keys.norms, keys.order, keys.starts, self._cosine, similarity, best)
        return similarity, best


def _values_on(device: torch.device, keys: Keys, *, cosine: bool) -> Values:
    if device.type == "cpu":
        return values_of(keys, cosine=cosine)
    from raxss.library.search_on_torch import KeysOnDevice

    return KeysOnDevice(keys, cosine=cosine, device=device)


def _cut(codes: NDArray[np.int64], n_codes: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places of each code: starts ``(n_codes + 1,)``, and the places, by code."""
    counts = np.bincount(codes, minlength=n_codes)
    return np.concatenate([[0], np.cumsum(counts)]), np.argsort(codes, kind="stable")


def _widened(lists: CaseLists, width: int) -> CaseLists:
    """With empty places at the end, where there are fewer cases than were asked for."""
    if lists.cases.shape[1] == width:
        return lists
    out = CaseLists(
        np.full((len(lists.cases), width), -1),
        np.full((len(lists.cases), width), -1),
        np.full((len(lists.cases), width), np.nan),
    )
    for wide, array in zip(out, lists, strict=True):
        wide[:, : array.shape[1]] = array
    return out


def _one_each(
    values: Sequence[Hashable | None] | None, n_cases: int, name: str
) -> tuple[Hashable | None, ...]:
    values = tuple(values or ())
    if values and len(values) != n_cases:
        raise DataError(
            f"{name} has {len(values)} entries, but there are {n_cases} cases. Give one for each."
        )
    return values


def _checked_series(
    series: ArrayLike | None, n_queries: int, facts: Mapping[str, Sequence[Any] | None]
) -> tuple[NDArray[np.int64], int]:
    """The series of each query, and how many there are: as many as anything was said of."""
    of_query = np.zeros(n_queries, np.int64) if series is None else np.asarray(series)
    if of_query.shape != (n_queries,) or (n_queries and not np.issubdtype(of_query.dtype, np.integer)):
        raise DataError(
            f"series has shape {of_query.shape} and type {of_query.dtype}, but one whole number for each of the "
            f"{n_queries} queries is needed."
        )
    given = {name: len(values) for name, values in facts.items() if values is not None}
    highest = int(of_query.max(initial=0))
    n_series = max(given.values(), default=highest + 1)
    for name, n_said in given.items():
        if n_said != n_series or n_said <= highest:
            raise DataError(
                f"{name} has {n_said} entries, but queries are of {max(highest + 1, n_series)} series. "
                "Give one for each."
            )
    if int(of_query.min(initial=0)) < 0:
        raise DataError(f"series has the number {int(of_query.min())}, but numbers from 0 on are needed.")
    return of_query.astype(np.int64), n_series


def _check_magnitude(largest: NDArray[np.float64], what: str) -> None:
    if (largest > MOST_DISTANCE).any():
        place = int(np.argmax(largest > MOST_DISTANCE))
        raise DataError(
            f"{what} {place} is as large as {largest[place]:.3g}, but distances are compared up to "
            f"{MOST_DISTANCE:.0e}. Standardise the features."
        )


def _whole(name: str, value: int | np.integer[Any], least: int) -> int:
    """A number that may be one of numpy's."""
    number = int(value) if isinstance(value, np.integer) else value
    at_least(name, number, least)
    return number


def _kind(name: Hashable) -> str:
    """Of what type a name is, where numbers of any type are one: 7 equals 7.0."""
    return "number" if isinstance(name, Number) else "str" if isinstance(name, str) else type(name).__name__
