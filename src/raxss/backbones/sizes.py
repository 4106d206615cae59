"""How large may a network be asked to be?

    sizes by their names -> nothing, or an error at once

A settings file or a model folder can hold any number. Building what a slip of the pen asks for would take for ever,
or all memory; these limits lie far beyond what anybody trains. Next: each network asks here first.
"""

from __future__ import annotations

from raxss.errors import ConfigError

MOST = {
    **dict.fromkeys(("n_layers", "n_blocks", "expand", "expansion", "top_k", "members"), 64),
    "n_kernels": 16,  # the largest of them has 31 x 31 places
    "derivatives": 8,
    "n_dilations": 32,  # of MultiView, which has up to 4 x 84 x n_cuts shares for each
    "n_cuts": 16,
    "d_textures": 1024,  # numbers for each share
    "width": 512,  # of ConvNet's first layer; its last has eight times as many
    **dict.fromkeys(("d_model", "d_ff", "widths", "d_state", "d_conv"), 4096),
    "n_components": 2**16,
    **dict.fromkeys(("average_over", "patch_length", "patch_stride", "large_kernel"), 10**6),  # samples
}


def check_at_most(**sizes: int) -> None:
    """Refuse a size beyond the most that its name allows.

    Examples
    --------
    >>> check_at_most(n_layers=64, d_model=32)
    >>> check_at_most(n_layers=65, d_model=32)
    Traceback (most recent call last):
    raxss.errors.ConfigError: n_layers must be at most 64, got 65. Choose a smaller one in backbone_options.
    """
    for name, found in sizes.items():
        if found > MOST[name]:
            raise ConfigError(
                f"{name} must be at most {MOST[name]}, got {found}. Choose a smaller one in backbone_options."
            )
