"""Forward passes of the network over the windows of one series.

    Windows of a series -> logits (n_windows, n_outputs), features (n_windows, d)

The samples go to the device once, as one strip; windows are cut there, a pass at a time. One series at a time
and always in the same passes, so that a score does not depend on what else is predicted.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from raxss._core.memory import refuse_too_large
from raxss.errors import ConfigError, did_you_mean
from raxss.method.backbones.protocol import handles_missing, logits_and_features
from raxss.method.context import ContextRule, add_context, takes_context, window_context
from raxss.method.windows import Windows, missing_samples, network_strip

WINDOWS_A_PASS = 512  # on the CPU: what the network makes of them stays in the caches
SAMPLES_A_PASS = 2**23  # of all windows of a pass on a GPU: 8192 windows of 1024
LEAST_A_PASS = 32  # windows; a GPU without room for these is left alone

logger = logging.getLogger("raxss")


def pick_device(device: str) -> torch.device:
    """Resolve ``"auto"`` (a CUDA device if there is one, else the CPU) and check that a device is available.

    >>> pick_device("cpu")
    device(type='cpu')
    """
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        resolved = torch.device(device)
    except RuntimeError as error:
        raise ConfigError(
            f"unknown device {device!r}{did_you_mean(device, ('auto', 'cpu', 'cuda'))}"
        ) from error
    if resolved.type not in ("cpu", "cuda"):
        raise ConfigError(f"device {device!r} is not supported; use 'auto', 'cpu' or 'cuda'.")
    if resolved.type == "cuda" and not torch.cuda.is_available():
        raise ConfigError(
            f"device {device!r} was requested, but torch {torch.__version__} sees no CUDA device. "
            "Use device='auto' or device='cpu'."
        )
    return resolved


@contextmanager
def exact_arithmetic() -> Iterator[None]:
    """Full float32 for convolutions on a GPU, not TF32 with its ten bits of mantissa."""
    with torch.backends.cudnn.flags(
        enabled=torch.backends.cudnn.enabled, benchmark=False, deterministic=True, allow_tf32=False
    ):
        yield


def score_windows(
    backbone: nn.Module,
    windows: Windows,
    *,
    device: torch.device,
    with_features: bool = False,
) -> tuple[Tensor, NDArray[np.float64] | None]:
    """Run the backbone over the windows of one series, dropout off.

    Missing samples are zeros, with a mask where the network takes one; windows with more than half of them missing
    are scored as well and get weight 0 later.

    Returns
    -------
    logits ``(n_windows, n_outputs)`` on the CPU, and features ``(n_windows, d)`` or None.

    Examples
    --------
    >>> from raxss.method.backbones import build_backbone
    >>> from raxss.data.series import Series
    >>> from raxss.method.windows import windows_of
    >>> network = build_backbone("convnet", n_variates=1, window_length=64, n_outputs=1)
    >>> windows = windows_of(Series(np.zeros(100)), window_length=64, stride=8)
    >>> score_windows(network, windows, device=torch.device("cpu"))[0].shape
    torch.Size([5, 1])
    """
    scores = Scorer(backbone, device).launch(windows, with_features=with_features)
    return scores.logits(), scores.features


@dataclass(frozen=True, eq=False)
class Scores:
    """Network output for the windows of one series; a GPU may still be computing it."""

    _logits: Tensor
    _copied: torch.cuda.Event | None
    features: NDArray[np.float64] | None  # (n_windows, d); None where not requested

    def logits(self) -> Tensor:
        """``(n_windows, n_outputs)`` on the CPU; waits for them."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._logits


class Scorer:
    """Runs one network over series after series, in smaller passes once memory was short.

    ``context`` is the context of windows where the network takes one, in place of their own.
    """

    def __init__(
        self, backbone: nn.Module, device: torch.device, *, context: ContextRule | None = None
    ) -> None:
        self._context = context
        self._backbone = backbone.to(device)
        self._device = device
        self._most_windows: int | None = None  # in a pass, where memory has been short

    def launch(
        self,
        windows: Windows,
        *,
        with_features: bool = False,
        on_progress: Callable[[float], None] | None = None,
    ) -> Scores:
        """Begin to score the windows of one series; a GPU works on after the return.

        ``on_progress`` is called with the share of the passes begun.
        """
        self._backbone.eval()
        while True:
            n_a_pass = self._windows_a_pass(windows)
            try:
                return self._score(windows, n_a_pass, with_features, on_progress)
            except torch.OutOfMemoryError:
                if n_a_pass <= LEAST_A_PASS and self._device.type == "cpu":
                    raise
            # Out of the except block: what the failed pass held is free only when its traceback is.
            self._make_room(n_a_pass)

    def _windows_a_pass(self, windows: Windows) -> int:
        if self._most_windows is not None:
            return self._most_windows
        if self._device.type == "cpu":
            return WINDOWS_A_PASS
        return max(SAMPLES_A_PASS // (len(windows.strip) * windows.length), LEAST_A_PASS)

    def _make_room(self, n_a_pass: int) -> None:
        """Halve the passes; where the smallest do not fit, change to the CPU. Warns once of each."""
        if self._device.type == "cuda":
            torch.cuda.empty_cache()
        if n_a_pass > LEAST_A_PASS:
            if self._most_windows is None:
                logger.warning(
                    "%s has no room for %d windows at once; going on with fewer, which is slower. Free its "
                    "memory for full speed.",
                    self._device,
                    n_a_pass,
                )
            self._most_windows = max(n_a_pass // 2, LEAST_A_PASS)
            return
        logger.warning("%s has no room for %d windows; going on with the CPU.", self._device, n_a_pass)
        self._device, self._most_windows = torch.device("cpu"), None
        self._backbone.to(self._device)

    def _score(
        self,
        windows: Windows,
        n_a_pass: int,
        with_features: bool,
        on_progress: Callable[[float], None] | None,
    ) -> Scores:
        logits: Tensor | None = None
        features: NDArray[np.float64] | None = None
        with torch.inference_mode(), exact_arithmetic():
            cut = self._upload(strip_for(self._backbone, windows)).unfold(1, windows.length, windows.stride)
            context = context_for(self._backbone, windows, self._context)
            if context is not None:
                context = self._on_device(context)
            for first in range(0, len(windows), n_a_pass):
                which = slice(first, first + n_a_pass)
                batch = cut[:, which].contiguous().transpose(0, 1)
                if context is not None:
                    batch = add_context(batch, context[which])
                if with_features:
                    raw, vectors = logits_and_features(self._backbone, batch)
                else:
                    raw = self._backbone(batch)
                if logits is None:
                    # One tensor for all: small results kept between large passes would fragment the memory.
                    dtype = (
                        torch.float64 if raw.dtype == torch.float64 else torch.float32
                    )  # of window classifiers
                    logits = raw.new_empty((len(windows), raw.shape[1]), dtype=dtype)
                logits[which] = raw
                if with_features:
                    part = vectors.double().cpu().numpy()
                    if features is None:
                        features = _room_for_features(len(windows), part.shape[1])
                    features[which] = part
                if on_progress is not None:
                    on_progress(min((first + n_a_pass) / len(windows), 1.0))
            assert logits is not None, "a series has one window at least"
            # Copied now, so that the copy does not queue behind the next series.
            return Scores(logits.to("cpu", non_blocking=True), self._event(), features)

    def _upload(self, strip: NDArray[np.floating]) -> Tensor:
        """All samples as float32 on the device, 0 where missing; with a mask where the network takes one."""
        with_mask = handles_missing(self._backbone) and bool(missing_samples(strip).any())
        return self._on_device(torch.from_numpy(network_strip(strip, with_mask=with_mask)))

    def _on_device(self, values: Tensor) -> Tensor:
        if self._device.type == "cuda":  # only from pinned memory does a copy not wait for the work before it
            values = values.pin_memory().to(self._device, non_blocking=True)
        return values

    def _event(self) -> torch.cuda.Event | None:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(self._device))
        return event


def strip_for(backbone: nn.Module, windows: Windows) -> NDArray[np.floating]:
    """The samples of a series for a backbone: where it marks padding, padding is NaN, else 0."""
    if not windows.n_padded or not getattr(backbone, "marks_padding", False):
        return windows.strip
    marked = np.array(windows.strip, dtype=np.float64)
    marked[:, -windows.n_padded :] = np.nan
    return marked


def context_for(
    backbone: nn.Module, windows: Windows, rule: ContextRule | None = None
) -> Tensor | None:  # (n_windows, 3)
    """Context of the windows of a series for a backbone; None where it takes none."""
    if not takes_context(backbone):
        return None
    return torch.from_numpy((rule or window_context)(windows))


def _room_for_features(n_windows: int, width: int) -> NDArray[np.float64]:
    """An array for all features of a series; refused where it and retrieval's copies do not fit into memory."""
    refuse_too_large(
        3 * 8 * n_windows * width,
        f"comparing {n_windows:,} windows by {width:,} features each",
        "Set space='signal', a longer stride, or a backbone with fewer features; or cut the series.",
    )
    return np.empty((n_windows, width))
