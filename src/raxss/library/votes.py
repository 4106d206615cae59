"""Votes of cases: a score from labelled windows of other recordings, which comes apart into windows and cases.

    labels and groups of cases, c               -> LabelledCases.weights: v (n_cases,)
    NearestCases, v                            -> votes: a (n_windows, m), q (n_windows, C)
    votes, window weights, window posteriors   -> CaseScore: P (C,), contributions, shares of groups, "without"

With the similarity s_kj of window k to case j among its m nearest cases,

    a_kj = v_j exp(s_kj / tau) / sum over l of v_l exp(s_kl / tau)
    q_k  = sum over j of a_kj e(y_j)
    P    = sum over k of alpha_k [(1 - lambda) p_k + lambda q_k]

search.py finds the cases; a window that no case is near keeps its own posterior p_k, and so does every window where
the cases that may vote are of one class, for they would say it whatever came.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from raxss._core.settings import is_number
from raxss.errors import ConfigError, DataError
from raxss.library.search import CaseLists, NearestCases

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]

NO_CASE = -1  # in a list, where there are fewer cases than asked for


@dataclass(frozen=True, eq=False)
class LabelledCases:
    """What votes need to know of the cases of a library.

    Examples
    --------
    Two recordings of ann, one of bob: every patient counts the same.

    >>> cases = LabelledCases([0, 0, 1], [0, 0, 1], ("ann", "bob"), n_classes=2)
    >>> cases.weights()
    array([0.5, 0.5, 1. ])
    >>> cases.weights(without=0)
    array([0., 0., 1.])

    Where one case a group is listed at most, the one of ann that is listed stands for all of hers:

    >>> cases.weights(most_a_group=1)
    array([1., 1., 1.])
    """

    labels: Integers  # (n_cases,) index of the class
    groups: Integers  # (n_cases,) into group_names
    group_names: tuple[Hashable, ...]
    n_classes: int

    def __init__(
        self, labels: ArrayLike, groups: ArrayLike, group_names: tuple[Hashable, ...], *, n_classes: int
    ) -> None:
        found = np.asarray(labels, dtype=np.int64), np.asarray(groups, dtype=np.int64)
        if found[0].ndim != 1 or found[0].shape != found[1].shape:
            raise DataError(
                f"labels of shape {found[0].shape} and groups of shape {found[1].shape} do not go together; needed "
                "is one of each for every case."
            )
        for name, values, n in (("label", found[0], n_classes), ("group", found[1], len(group_names))):
            if len(values) and not 0 <= values.min() <= values.max() < n:
                raise DataError(
                    f"cases have the {name} numbers {values.min()} to {values.max()}; needed are numbers from 0 to "
                    f"{n - 1}."
                )
        object.__setattr__(self, "labels", found[0])
        object.__setattr__(self, "groups", found[1])
        object.__setattr__(self, "group_names", tuple(group_names))
        object.__setattr__(self, "n_classes", int(n_classes))

    def __len__(self) -> int:
        return len(self.labels)

    def weights(
        self,
        *,
        visible: Flags | None = None,  # (n_cases,)
        without: int | None = None,
        prior: ArrayLike | None = None,  # (C,)
        most_a_group: int | None = None,
    ) -> Floats:  # (n_cases,)
        """v_j, by which every group counts the same, however many cases it has.

        v_j = w_c / min(n_g, c) for a case of class c in group g with n_g visible cases, of which at most
        ``most_a_group`` (c) can be listed; 0 for cases that are not visible. So a group whose listed cases are as
        many as they can be has w_c in all, with one case or with fifty. Without a prior w_c is 1, so that classes
        have the shares that groups give them; else w_c is such that the w_c / n_g of class c add up to its prior:
        the share of each group in a class counts once there too, however many of its cases are listed.

        Parameters
        ----------
        visible
            Cases that a series may see; None: all. Own group and near-duplicates are left out.
        without
            The number of a group that is left out as well.
        prior
            Probability of each class; a class without a visible case gets no votes.
        most_a_group
            How many cases of a group a list has at most; None: all.
        """
        seen = np.ones(len(self), dtype=bool) if visible is None else np.array(visible, dtype=bool)
        if without is not None:
            seen &= self.groups != without
        n_of_group = np.maximum(np.bincount(self.groups[seen], minlength=len(self.group_names)), 1)
        n_listed = n_of_group if most_a_group is None else np.minimum(n_of_group, most_a_group)
        found = np.where(seen, 1.0 / n_listed[self.groups], 0.0)
        if prior is None:
            return found
        share_of_group = np.where(seen, 1.0 / n_of_group[self.groups], 0.0)
        of_class = np.bincount(self.labels, weights=share_of_group, minlength=self.n_classes)
        scale = _checked_prior(prior, self.n_classes)
        scale[of_class > 0] /= of_class[of_class > 0]
        return found * scale[self.labels]


def _checked_prior(prior: ArrayLike, n_classes: int) -> Floats:
    found = np.asarray(prior, dtype=np.float64)
    if found.shape != (n_classes,) or not (
        np.isfinite(found).all() and (found >= 0).all() and found.sum() > 0
    ):
        raise ConfigError(
            f"prior is {np.asarray(prior).tolist()!r}; needed is a probability of each of {n_classes} classes, at "
            "least 0 and not all 0."
        )
    return found / found.sum()


def votes(
    lists: CaseLists, case_weights: Floats, labels: Integers, *, tau: float, n_classes: int
) -> tuple[Floats, Floats]:
    """How far each listed case decides the vote of a window, and the vote.

    Parameters
    ----------
    lists
        Of the nearest cases, ``(n_windows, m)`` each.
    case_weights
        v ``(n_cases,)``, above 0 for every case that is listed.

    Returns
    -------
    a ``(n_windows, m)``, whose rows add up to 1, and q ``(n_windows, C)``; both 0 for a window without cases.

    Examples
    --------
    >>> lists = CaseLists(np.array([[2, 0], [-1, -1]]), np.array([[5, 1], [-1, -1]]),
    ...                   np.array([[0.9, 0.8], [np.nan, np.nan]]))
    >>> a, q = votes(lists, np.ones(3), np.array([0, 0, 1]), tau=0.1, n_classes=2)
    >>> a.round(3).tolist(), q.round(3).tolist()
    ([[0.731, 0.269], [0.0, 0.0]], [[0.269, 0.731], [0.0, 0.0]])
    """
    if not (is_number(tau) and tau > 0):
        raise ConfigError(f"tau is {tau!r}; needed is a number above 0.")
    there = lists.cases >= 0
    # The logarithm of v joins the exponent, so that neither very small v nor very large similarities overflow.
    with np.errstate(divide="ignore"):
        exponent = np.where(there, lists.similarity / tau + np.log(case_weights)[lists.cases], -np.inf)
    largest = exponent.max(axis=1, initial=-np.inf, keepdims=True)
    shares = np.exp(exponent - np.where(np.isfinite(largest), largest, 0.0))
    total = shares.sum(axis=1, keepdims=True)
    a = np.divide(shares, total, out=np.zeros_like(shares), where=total > 0)
    return a, votes_of_classes(a, lists.cases, labels, n_classes)


def votes_of_classes(a: Floats, cases: Integers, labels: Integers, n_classes: int) -> Floats:
    """q_k = sum over j of a_kj e(y_j), ``(n_windows, C)``."""
    of_case = np.where(cases >= 0, labels[cases], n_classes)  # one more class, for places without a case
    found = np.zeros((len(cases), n_classes + 1))
    np.add.at(found, (np.arange(len(cases))[:, None], of_case), a)
    return found[:, :n_classes]


@dataclass(frozen=True, eq=False, kw_only=True)
class CaseScore:
    """The score of one series with its cases, taken apart.

    Attributes
    ----------
    weights, posteriors
        alpha ``(n_windows,)``, which add up to 1, and p ``(n_windows, C)`` of the model alone.
    nearest
        The nearest cases of each window, with those to spare.
    cases, visible
        Labels and groups of all cases of the library, and which the series may see ``(n_cases,)``.
    mixing
        lambda, from 0 (cases are evidence alone) to 1 (cases decide alone); see `mixing_of_windows` for where it
        does not hold.
    tau, prior, most_a_group
        Settings of the votes; the last as the cases were searched with, None: without a limit.
    least_similarity
        A window whose best case is less similar than this has no vote; None: every window with a case votes.
    most_distance, norms, key_norms
        A window that is farther than this from all its cases has no vote either; with the norms of the windows'
        features ``(n_windows,)`` and of all keys ``(n_keys,)``, for similarities that are cosines. A cosine alone
        does not tell a window that is strange by being large.

    Examples
    --------
    >>> from raxss.library.search import CaseSearch
    >>> search = CaseSearch([(np.eye(3), [0, 1, 2])], groups=["ann", "bob", "cid"])
    >>> cases = LabelledCases([0, 1, 1], [0, 1, 2], search.groups, n_classes=2)
    >>> score = CaseScore(
    ...     weights=np.array([0.5, 0.5]), posteriors=np.array([[0.7, 0.3], [0.6, 0.4]]),
    ...     nearest=search.nearest([[1, 0.2, 0], [0, 1, 0.1]], n_cases=2, most_a_group=1), cases=cases,
    ...     visible=np.ones(3, bool), mixing=0.5, tau=0.1, most_a_group=1)
    >>> score.probability.round(3), score.shares_of_groups().round(3)
    (array([0.575, 0.425]), array([0.25, 0.25, 0.  ]))
    >>> bool(np.isclose(score.contributions().sum(), score.probability.sum()))
    True
    >>> score.without("bob").probability.round(3)
    array([0.642, 0.358])
    >>> score.without("ann").probability.round(3)  # one class is left, and the model alone answers
    array([0.65, 0.35])
    """

    weights: Floats
    posteriors: Floats
    nearest: NearestCases
    cases: LabelledCases
    visible: Flags
    mixing: float
    tau: float
    prior: Floats | None = None
    most_a_group: int | None = None
    least_similarity: float | None = None
    most_distance: float | None = None
    norms: Floats | None = None
    key_norms: Floats | None = None
    left_out: Hashable = None  # the group that the score is without

    def __post_init__(self) -> None:
        if not (is_number(self.mixing) and 0 <= self.mixing <= 1):
            raise ConfigError(f"mixing is {self.mixing!r}; needed is a number from 0 to 1.")
        n = len(self.nearest.cases)
        if self.weights.shape != (n,) or self.posteriors.shape != (n, self.cases.n_classes):
            raise DataError(
                f"weights of shape {self.weights.shape} and posteriors of shape {self.posteriors.shape} do not go "
                f"with cases of {n} windows and {self.cases.n_classes} classes."
            )
        if self.most_distance is not None and (self.norms is None or self.key_norms is None):
            raise DataError(
                f"most_distance is {self.most_distance:g}, but distances need the norms of windows and keys. Give "
                "norms and key_norms, or no most_distance."
            )
        _ = self._votes  # or an error: tau and prior are checked there

    @functools.cached_property
    def _votes(self) -> tuple[Floats, Floats]:
        without = None if self.left_out is None else self.cases.group_names.index(self.left_out)
        v = self.cases.weights(
            visible=self.visible, without=without, prior=self.prior, most_a_group=self.most_a_group
        )
        return votes(self.lists, v, self.cases.labels, tau=self.tau, n_classes=self.cases.n_classes)

    @functools.cached_property
    def lists(self) -> CaseLists:
        """The m nearest cases of each window, without those to spare and without the group that is left out."""
        if self.left_out is not None:
            return self.nearest.without(self.left_out)
        return CaseLists(self.nearest.cases, self.nearest.keys, self.nearest.similarity)

    @property
    def influence(self) -> Floats:
        """a ``(n_windows, m)``: how far each case decides the vote of a window."""
        return self._votes[0]

    @property
    def votes(self) -> Floats:
        """q ``(n_windows, C)``; 0 for a window without cases."""
        return self._votes[1]

    @property
    def is_near(self) -> Flags:
        """``(n_windows,)`` whether a window has a case that is near enough to vote."""
        # Not the first of the list: cases of a local site come before more similar ones.
        best = np.where(self.lists.cases >= 0, self.lists.similarity, -np.inf).max(axis=1, initial=-np.inf)
        near: Flags = self.influence.sum(axis=1) > 0
        if self.least_similarity is not None:
            near &= best >= self.least_similarity
        if self.most_distance is not None:
            near &= self.distances <= self.most_distance
        return near

    @property
    def distances(self) -> Floats:
        """``(n_windows,)`` of each window to the nearest of the keys listed, sqrt(q² + h² - 2 q h s); inf without.

        Only where norms are known, and similarities are cosines.
        """
        if self.norms is None or self.key_norms is None:
            return np.full(len(self.influence), np.inf)
        own, keys = self.norms[:, None], self.key_norms[self.lists.keys]
        squares = np.square(own) + np.square(keys) - 2 * own * keys * self.lists.similarity
        there = np.where(self.lists.cases >= 0, np.maximum(squares, 0.0), np.inf)
        found: Floats = np.sqrt(there.min(axis=1, initial=np.inf))
        return found

    @functools.cached_property
    def labels_that_vote(self) -> Integers:
        """The classes of the cases that the series may see, without those of the group that is left out."""
        seen = self.visible
        if self.left_out is not None:
            seen = seen & (self.cases.groups != self.cases.group_names.index(self.left_out))
        return np.unique(self.cases.labels[seen])

    @property
    def mixing_of_windows(self) -> Floats:
        """``(n_windows,)`` lambda where a window votes, else 0; 0 throughout where cases are of one class or none.

        Cases of one class would say so whatever came. The rule is here, so that a score without a group is that of
        a library which the group left, where its leaving leaves one class.
        """
        if len(self.labels_that_vote) < 2:
            return np.zeros(len(self.weights))
        return np.where(self.is_near, float(self.mixing), 0.0)

    @property
    def from_model(self) -> Floats:
        """``(n_windows, C)`` what the posteriors of the model add: alpha_k (1 - lambda_k) p_k."""
        found: Floats = (self.weights * (1.0 - self.mixing_of_windows))[:, None] * self.posteriors
        return found

    @property
    def from_cases(self) -> Floats:
        """``(n_windows, m)`` what each case adds to the probability of its own class: alpha_k lambda_k a_kj."""
        found: Floats = (self.weights * self.mixing_of_windows)[:, None] * self.influence
        return found

    def contributions(self) -> Floats:
        """``(n_windows, 1 + m, C)`` of the model and of every case; they add up to `probability`."""
        n, m = self.influence.shape
        found = np.zeros((n, 1 + m, self.cases.n_classes))
        found[:, 0] = self.from_model
        cases = self.lists.cases
        rows, ranks = np.nonzero(cases >= 0)
        found[rows, 1 + ranks, self.cases.labels[cases[rows, ranks]]] = self.from_cases[rows, ranks]
        return found

    @property
    def probability(self) -> Floats:
        """P ``(C,)``."""
        mixing = (self.weights * self.mixing_of_windows)[:, None]
        found: Floats = (self.from_model + mixing * self.votes).sum(axis=0)
        return found

    def shares_of_groups(self) -> Floats:
        """``(n_groups,)`` C_g, the part of the score that rests on cases of each group; the rest is the model's."""
        cases = self.lists.cases
        there = cases >= 0
        found = np.zeros(len(self.cases.group_names))
        np.add.at(found, self.cases.groups[cases[there]], self.from_cases[there])
        return found

    @property
    def effective_groups(self) -> float:
        """Effective number of groups behind the votes, (sum of C_g)^2 / sum of C_g^2; 0 without any."""
        shares = self.shares_of_groups()
        total = float(np.square(shares).sum())
        return float(shares.sum()) ** 2 / total if total > 0 else 0.0

    def slopes(self, place: int) -> Floats:
        """``(n_windows, m)`` derivative of the probability of a class with respect to the similarity of each case.

        alpha_k lambda_k a_kj (1[y_j = c] - q_kc) / tau, with alpha, lambda and the lists held.
        """
        cases = self.lists.cases
        is_class = (cases >= 0) & (self.cases.labels[cases] == place)
        found: Floats = self.from_cases * (is_class - self.votes[:, [place]]) / self.tau
        return found

    def without(self, group: Hashable) -> CaseScore:
        """What the library without a group answers, with tau, lambda and standardisation held.

        v is computed anew, and cases that were fetched to spare take the places of those that leave.
        """
        if self.left_out is not None:
            raise ConfigError(
                f"the score is without group {self.left_out!r} already. Ask the whole score for another group."
            )
        if group not in self.cases.group_names:
            n = len(self.cases.group_names)
            raise ConfigError(f"there is no group {group!r} among the {n} of the library.")
        return replace(self, left_out=group)

    def shares_by_name(self, *, most: int | None = None) -> Mapping[Hashable, float]:
        """Groups with a share above 0, the largest first."""
        shares = self.shares_of_groups()
        order = np.argsort(-shares, kind="stable")[:most]
        return {self.cases.group_names[place]: float(shares[place]) for place in order if shares[place] > 0}


def visible_cases(
    cases: LabelledCases, digests: tuple[str, ...], *, own_groups: tuple[Hashable, ...] = (), digest: str = ""
) -> Flags:  # (n_cases,)
    """Cases that a series may see: none of its own groups, and no recording of the same samples.

    >>> cases = LabelledCases([0, 1, 1], [0, 0, 1], ("ann", "bob"), n_classes=2)
    >>> visible_cases(cases, ("x", "y", "z"), own_groups=("bob",), digest="x")
    array([False,  True, False])
    """
    own = [cases.group_names.index(name) for name in own_groups if name in cases.group_names]
    return ~np.isin(cases.groups, own) & (np.array(digests) != digest)


def largest_share(cases: Integers, groups: Integers, n_groups: int) -> tuple[int, float]:
    """The group with the largest share among all listed cases, and the share; 0 where none is listed.

    >>> largest_share(np.array([[0, 1], [2, -1]]), np.array([4, 7, 7]), 8)
    (7, 0.6666666666666666)
    """
    counts = np.bincount(groups[cases[cases >= 0]], minlength=n_groups)
    group = int(counts.argmax())
    return group, float(counts[group] / counts.sum()) if counts.sum() else 0.0
