"""Limits on the sizes of networks.

    sizes by their names -> nothing, or an error at once
    weights in a file    -> at_most_parameters: a network that does not fit them is refused while it is built

A settings file or a model folder can hold any number. Building a network of a mistyped size could take all time or
memory; these limits lie far beyond what is trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from torch import nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from raxss._core.memory import gigabytes
from raxss._core.sealing import MOST_TENSORS, MOST_WEIGHT_BYTES
from raxss.errors import ConfigError

MOST = {
    **dict.fromkeys(("n_layers", "n_blocks", "expand", "expansion", "top_k", "members"), 64),
    "n_kernels": 16,  # the largest of them has 31 x 31 places
    "derivatives": 8,
    "n_dilations": 32,  # of MultiView, which has up to 4 x 84 x n_cuts shares for each
    "n_cuts": 16,
    "d_ppv": 1024,  # numbers for each share
    "width": 512,  # of ConvNet's first layer; its last has eight times as many
    **dict.fromkeys(("d_model", "d_ff", "widths", "d_state", "d_conv"), 4096),
    "n_components": 2**16,
    "n_trees": 10_000,
    **dict.fromkeys(("average_over", "patch_length", "patch_stride", "large_kernel"), 10**6),  # samples
}

MOST_IN_WINDOW = 2**22  # samples times variates: the layers of a network take gigabytes for one such window
SPARE_PARAMETERS = 2**20  # beyond those in a file, for networks that replace some while they are built


def check_window(n_variates: int, window_length: int) -> None:
    """Refuse windows that no network could be trained on."""
    if n_variates * window_length > MOST_IN_WINDOW:
        raise ConfigError(
            f"windows of {n_variates} variates x {window_length} samples are too large: at most {MOST_IN_WINDOW:,} "
            "numbers a window are allowed, because a network takes gigabytes for larger ones. Set a smaller "
            "windows.window_length."
        )


def check_network(network: nn.Module) -> None:
    """Refuse a network whose weights are more than a model folder may hold."""
    state = network.state_dict()
    n_bytes = sum(value.numel() * value.element_size() for value in state.values())
    if len(state) > MOST_TENSORS // 2 or n_bytes > MOST_WEIGHT_BYTES // 2:
        raise ConfigError(
            f"the network has {len(state):,} tensors of {gigabytes(n_bytes)}; a model folder holds at most "
            f"{MOST_TENSORS // 2:,} tensors and {gigabytes(MOST_WEIGHT_BYTES // 2)} of a network, so that reading "
            "one cannot fill the memory. Choose a smaller one in backbone_options."
        )


@dataclass
class _Budget:
    most: int
    n_parameters: int = 0


_budget: ContextVar[_Budget | None] = ContextVar("parameters that a network may have", default=None)


@contextmanager
def at_most_parameters(most: int) -> Iterator[None]:
    """While a network is built for known weights: refuse one that would have far more parameters, in this thread.

    Each parameter is counted before numbers are put into it, so a network that is too large takes no memory.
    """

    def count(module: nn.Module, name: str, parameter: nn.Parameter) -> None:
        if parameter is not None:
            check_allocation(parameter.numel(), held=True)

    token = _budget.set(_Budget(most))
    handle = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        handle.remove()
        _budget.reset(token)


def built_for_weights() -> bool:
    """Whether a network is being built for known weights (`at_most_parameters`)."""
    return _budget.get() is not None


def check_allocation(n_numbers: int, *, held: bool = False) -> None:
    """Refuse an array that is larger than all parameters the network may have; ``held``: it stays and counts."""
    budget = _budget.get()
    if budget is None:
        return
    found = budget.n_parameters + n_numbers
    if found > 2 * budget.most + SPARE_PARAMETERS:
        raise ConfigError(
            f"the network would have {found:,} parameters or more, but the weights are {budget.most:,} numbers. "
            "Window length, variates, classes or backbone_options are not those that the weights were made with."
        )
    if held:
        budget.n_parameters = found


def check_at_most(**sizes: int) -> None:
    """Refuse a size beyond the limit of its name."""
    for name, found in sizes.items():
        assert name in MOST, (
            f"the option {name!r} has no limit yet: add it to MOST, or call it as a similar one there"
        )
        if found > MOST[name]:
            raise ConfigError(
                f"{name} must be at most {MOST[name]}, got {found}. Choose a smaller one in backbone_options."
            )


def check_at_least_1(**sizes: int) -> None:
    """Refuse sizes below 1; the error names all of them."""
    if min(sizes.values()) < 1:
        found = ", ".join(f"{name}={size}" for name, size in sizes.items())
        raise ConfigError(f"sizes of a network must be at least 1; got {found}. Choose larger ones.")
