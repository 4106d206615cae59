"""Protocol, registry and construction of backbones.

    a name or a callable, shapes, options -> a module
    the module: windows (batch, n_variates, length) -> logits (batch, n_outputs)

n_outputs is 1 for two classes (the logit of the second) and C for C > 2; a module may also return two logits for
two classes. Optional methods: ``features(windows) -> (batch, d)``, the input of its head, which retrieval in
feature space needs; ``logits_of(features)``, its head, so that one pass gives both; ``look_at(windows)``, which
gets up to 1024 scaled training windows (n, n_variates, length) before the first step, to take thresholds or
moments from them into buffers.

Missing samples are 0 in every variate, the neutral value of scaled signals. A network whose class says
``handles_missing = True`` also gets a mask, as one more row behind the variates: 1 where a sample is present, 0
where it is missing; where no sample of the series (in training: of the pool) is missing there is no such row.
`split_mask` takes it off. Other networks get the neutral value alone. A module that says ``takes_context = True``
gets the context of each window in a last row (../context.py), where windows come from series, not on a trial.

Next: convnet.py, patchtst.py and multiview.py.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from raxss._core.renames import current_backbone
from raxss._core.settings import toml_value
from raxss.errors import BackboneError, ConfigError, RAxSSError, did_you_mean
from raxss.method.backbones.sizes import at_most_parameters, built_for_weights, check_window

N_PROBES = 2  # windows in the batch that a new network is tried on


class FeatureNetwork(nn.Module):
    """A network whose logits are a linear function of its features.

    A subclass has ``features(windows) -> (batch, d)`` and the layers ``dropout`` and ``head``, in this order.
    """

    handles_missing = False  # whether windows with missing samples come with a mask
    dropout: nn.Module
    head: nn.Linear

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, d)``."""
        raise NotImplementedError

    def forward(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> logits ``(batch, n_outputs)``."""
        return self.logits_of(self.features(windows))

    def logits_of(self, features: Tensor) -> Tensor:
        """``(batch, d)`` -> logits ``(batch, n_outputs)``."""
        logits: Tensor = self.head(self.dropout(features))
        return logits


def handles_missing(backbone: nn.Module) -> bool:
    """Whether a network takes a mask of missing samples as one more row."""
    return bool(getattr(backbone, "handles_missing", False))


def split_mask(windows: Tensor, n_variates: int) -> tuple[Tensor, Tensor | None]:
    """Windows ``(batch, n_variates, length)`` and their mask ``(batch, 1, length)``, None where they have none.

    >>> values, present = split_mask(torch.ones(2, 4, 10), n_variates=3)
    >>> values.shape, present.shape
    (torch.Size([2, 3, 10]), torch.Size([2, 1, 10]))
    """
    if windows.shape[1] == n_variates:
        return windows, None
    return windows[:, :n_variates], windows[:, n_variates:]


BackboneMaker = Callable[..., nn.Module]  # (n_variates, window_length, n_outputs, **options); a class counts
BACKBONES: dict[str, BackboneMaker] = {}
"""Name -> class or function that builds the network."""
WINDOW_CLASSIFIERS: dict[str, BackboneMaker] = {}
"""Name -> class of a backbone that is fitted at once (window_classifiers.py), or a mixture of such."""

Maker = TypeVar("Maker", bound=BackboneMaker)


def register_backbone(name: str) -> Callable[[Maker], Maker]:
    """Register a network under a name, for the estimator and for settings files that Python code reads.

    >>> @register_backbone("last-value")
    ... class LastValue(nn.Module):
    ...     def __init__(self, n_variates, window_length, n_outputs):
    ...         super().__init__()
    ...         self.head = nn.Linear(n_variates, n_outputs)
    ...     def features(self, windows):
    ...         return windows[:, :, -1]
    ...     def forward(self, windows):
    ...         return self.head(self.features(windows))
    >>> build_backbone("last-value", n_variates=2, window_length=9, n_outputs=1)
    LastValue(
      (head): Linear(in_features=2, out_features=1, bias=True)
    )
    >>> del BACKBONES["last-value"]
    """

    return _register(name, BACKBONES)


def register_classifier(name: str) -> Callable[[Maker], Maker]:
    """Register a `WindowClassifier` under a name, which no network may have."""
    return _register(name, WINDOW_CLASSIFIERS)


def known_backbones() -> dict[str, BackboneMaker]:
    """Networks and window classifiers by name."""
    return BACKBONES | WINDOW_CLASSIFIERS


def _register(name: str, registry: dict[str, BackboneMaker]) -> Callable[[Maker], Maker]:
    def register(maker: Maker) -> Maker:
        # Former names are taken as well.
        taken = known_backbones().get(current_backbone(name, None, warn=False)[0])
        if taken is not None and _place(taken) != _place(maker):
            raise ConfigError(
                f"the backbone name {name!r} belongs to {_place(taken)} already and cannot also mean "
                f"{_place(maker)}. Register it under another name."
            )
        registry[name] = maker
        return maker

    return register


def build_backbone(
    backbone: str | BackboneMaker,
    *,
    n_variates: int,
    window_length: int,
    n_outputs: int,
    options: Mapping[str, Any] | None = None,
    n_numbers: int | None = None,
) -> nn.Module:
    """Build a network and try it on a batch of two windows.

    Parameters
    ----------
    backbone
        A registered name, or a callable ``(n_variates, window_length, n_outputs, **options) -> nn.Module``,
        or a classifier of scikit-learn (any_classifier.py).
    n_outputs
        1 for two classes, C for C > 2.
    options
        Of the network itself, e.g. ``{"dropout": 0.1}``.
    n_numbers
        Of the weights in a file that the network is built for: one that is larger than they are is refused. A
        network of this package is then not tried on windows, whose size whoever wrote the file chose.

    Examples
    --------
    >>> network = build_backbone("patchtst", n_variates=1, window_length=1024, n_outputs=1)
    >>> describe(network)
    'PatchTST, 34,019 parameters'
    >>> network(torch.zeros(5, 1, 1024)).shape
    torch.Size([5, 1])
    """
    limits: AbstractContextManager[None] = nullcontext()
    if n_numbers is not None:
        check_window(n_variates, window_length)
        if isinstance(backbone, str):  # a callable is the caller's, and may build what it likes
            limits = at_most_parameters(n_numbers)
    backbone, options = current_backbone(backbone, options)
    maker, label = _resolve(backbone)
    options = dict(options or {})
    _check_options(maker, label, options)
    try:
        with limits:
            network = maker(n_variates, window_length, n_outputs, **options)
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, RAxSSError):
            raise
        raise ConfigError(
            f"backbone {label} cannot be built for {n_variates} variates, windows of {window_length} samples, "
            f"{n_outputs} outputs and options {options}: {error}. Check backbone_options."
        ) from error
    if not isinstance(network, nn.Module):
        raise BackboneError(
            f"backbone {label} returned {type(network).__name__}; a torch.nn.Module is needed. "
            "Let the callable return the network it builds."
        )
    for_weights = n_numbers is not None or built_for_weights()  # the latter within an ensemble
    if not for_weights or known_n_features(network) is None:
        _probe(network, label, (n_variates, window_length), n_outputs)
    return network


def known_n_features(network: nn.Module) -> int | None:
    """Number of features of a network of this package; None for others, which must be tried."""
    if not type(network).__module__.startswith(f"{__package__}."):
        return None
    if not has_head(network) and not callable(getattr(network, "fit_windows", None)):
        return None
    widths = getattr(network, "widths", None)  # of an ensemble, for each member
    if isinstance(widths, list):
        return sum(widths)
    head = getattr(network, "head", None)
    return head.in_features if isinstance(head, nn.Linear) else None


def n_features(network: nn.Module, n_variates: int, window_length: int) -> int:
    """Number of features of a network; one that is not of this package is tried on two windows."""
    known = known_n_features(network)
    if known is not None:
        return known
    with _evaluating(network):
        return features_of(network, torch.zeros(N_PROBES, n_variates, window_length)).shape[1]


@contextmanager
def _evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode without gradients; every module gets its mode back."""
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes:
            module.training = training


def n_outputs_for(n_classes: int) -> int:
    """Number of logits for so many classes: one for two, else one a class.

    >>> n_outputs_for(2), n_outputs_for(7)
    (1, 7)
    """
    return 1 if n_classes == 2 else n_classes


def features_of(backbone: nn.Module, windows: Tensor) -> Tensor:
    """One vector per window, the input of the backbone's head: ``(batch, d)``.

    >>> network = build_backbone("convnet", n_variates=1, window_length=64, n_outputs=1)
    >>> features_of(network, torch.zeros(3, 1, 64)).shape[0]
    3
    """
    features = getattr(backbone, "features", None)
    if not callable(features):
        raise BackboneError(
            f"backbone {type(backbone).__name__} has no method features(windows) -> (batch, d), which retrieval in "
            "feature space needs. Add it (the input of the network's last layer), or set space='signal'."
        )
    vectors = features(windows)
    if not isinstance(vectors, Tensor) or vectors.ndim != 2 or len(vectors) != len(windows):
        raise BackboneError(
            f"features(windows) of backbone {type(backbone).__name__} returned {_shape_of(vectors)} for "
            f"{len(windows)} windows; ({len(windows)}, d) is needed, one vector per window. Flatten the rest."
        )
    return vectors


def logits_and_features(backbone: nn.Module, windows: Tensor) -> tuple[Tensor, Tensor]:
    """Logits ``(batch, n_outputs)`` and features ``(batch, d)`` of the same windows.

    From one pass where the network has ``logits_of(features)`` that belongs to its ``forward``, else from two.

    >>> network = build_backbone("convnet", n_variates=1, window_length=64, n_outputs=1)
    >>> [values.shape for values in logits_and_features(network, torch.zeros(3, 1, 64))]
    [torch.Size([3, 1]), torch.Size([3, 256])]
    """
    both = getattr(backbone, "logits_and_features", None)
    if callable(both):
        found: tuple[Tensor, Tensor] = both(windows)
        return found
    features = features_of(backbone, windows)
    if not has_head(backbone):
        return backbone(windows), features
    logits: Tensor = backbone.logits_of(features)  # type: ignore[operator]
    return logits, features


def has_head(backbone: nn.Module) -> bool:
    """Whether ``logits_of`` belongs to the ``forward`` that is called: no subclass overrides ``forward`` alone."""
    own = "forward" in vars(backbone)  # put onto the network itself
    for kind in type(backbone).__mro__:
        if "logits_of" in vars(kind):
            return not own
        own = own or "forward" in vars(kind)
    return False


def n_parameters(backbone: nn.Module) -> int:
    """Number of trainable parameters.

    >>> n_parameters(nn.Linear(3, 2))
    8
    """
    return sum(parameter.numel() for parameter in backbone.parameters() if parameter.requires_grad)


def describe(backbone: nn.Module) -> str:
    """What it is, and how many parameters are trained, if any; for logs and model cards.

    >>> describe(nn.Linear(3, 2))
    'Linear, 8 parameters'
    """
    name = getattr(backbone, "describe_as", type(backbone).__name__)
    n_trained = n_parameters(backbone)
    return f"{name}, {n_trained:,} parameters" if n_trained else name


def _resolve(backbone: str | BackboneMaker) -> tuple[BackboneMaker, str]:
    """The callable that builds the network, and its name in errors."""
    if isinstance(backbone, str):
        known = known_backbones()
        if backbone not in known:
            raise ConfigError(
                f"there is no backbone {backbone!r}{did_you_mean(backbone, sorted(known))} For a network of "
                "your own, pass its class or see register_backbone."
            )
        return known[backbone], repr(backbone)
    if isinstance(backbone, nn.Module):
        raise BackboneError(
            f"backbone is a {type(backbone).__name__} that is built already; a name or a callable that builds one "
            "is needed, because each fit starts from fresh weights. Pass the class, or a function "
            "(n_variates, window_length, n_outputs) -> nn.Module."
        )
    if not isinstance(backbone, type) and hasattr(backbone, "fit"):
        from raxss.method.backbones.any_classifier import maker_of  # imports this module

        return maker_of(backbone), type(backbone).__name__
    if not callable(backbone):
        raise BackboneError(
            f"backbone is {backbone!r} of type {type(backbone).__name__}; needed is a name "
            f"({', '.join(map(repr, sorted(known_backbones())))}) or a callable that builds a torch.nn.Module."
        )
    return backbone, repr(getattr(backbone, "__name__", type(backbone).__name__))


def _check_options(maker: BackboneMaker, label: str, options: Mapping[str, Any]) -> None:
    try:
        parameters = list(inspect.signature(maker).parameters.values())
    except (TypeError, ValueError):  # a builtin without a signature
        return
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    named = [parameter.name for parameter in parameters if parameter.kind is not parameter.POSITIONAL_ONLY]
    known = named[3:]
    for name in options:
        if name not in known:
            raise ConfigError(f"backbone {label} has no option {name!r}{did_you_mean(name, known)}")


def _probe(network: nn.Module, label: str, window_shape: tuple[int, int], n_outputs: int) -> None:
    """Call the network once, without dropout or gradients, and check the shape of its logits."""
    example = next(network.parameters(), torch.zeros(0))
    windows = torch.zeros((N_PROBES, *window_shape), device=example.device, dtype=example.dtype)
    needed = f"({N_PROBES}, {n_outputs})" + (f" or ({N_PROBES}, 2)" if n_outputs == 1 else "")
    try:
        with _evaluating(network):
            logits = network(windows)
    except Exception as error:
        raise BackboneError(
            f"backbone {label} failed on windows of shape {tuple(windows.shape)} (batch, variates, length): "
            f"{error}. It must take these and return logits of shape {needed}."
        ) from error
    widths = (1, 2) if n_outputs == 1 else (n_outputs,)
    allowed = [(N_PROBES, width) for width in widths]
    if not isinstance(logits, Tensor) or tuple(logits.shape) not in allowed:
        raise BackboneError(
            f"backbone {label} returned {_shape_of(logits)} for windows of shape {tuple(windows.shape)} (batch, "
            f"variates, length); logits of shape {needed} are needed. Change its last layer to n_outputs values "
            "per window."
        )


def _place(maker: BackboneMaker) -> str:
    """Module and name of a class or function; the same again when a notebook cell runs twice."""
    return f"{getattr(maker, '__module__', '?')}.{getattr(maker, '__qualname__', type(maker).__qualname__)}"


def _shape_of(value: object) -> str:
    return f"shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__


@dataclass(frozen=True, kw_only=True)
class BackboneConfig:
    """Which network scores a window (f_theta)."""

    backbone: Any = "mixture"  # a name, or a callable (n_variates, window_length, n_outputs) -> module
    backbone_options: Mapping[str, Any] = field(default_factory=dict)
    share_missing: bool = False  # the share of missing samples of a window is one more input
    context: bool = False  # so are position, level and amplitude of a window in its series

    def __post_init__(self) -> None:
        for name in ("share_missing", "context"):
            if not isinstance(getattr(self, name), bool):
                raise ConfigError(f"backbone.{name} must be true or false, got {getattr(self, name)!r}.")
        if not isinstance(self.backbone_options, Mapping):
            raise ConfigError(
                f"backbone.backbone_options must be a mapping of names to values, got {self.backbone_options!r}."
            )
        toml_value(self.backbone_options)  # better now than when the fitted model is saved
        network, options = current_backbone(self.backbone, self.backbone_options)
        object.__setattr__(self, "backbone", network)
        object.__setattr__(self, "backbone_options", options)
