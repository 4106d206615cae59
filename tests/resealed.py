"""Model folders that were changed by somebody who also computed every hash anew: what a seal cannot notice."""

import contextlib
import hashlib
import json

import torch
from safetensors.torch import load_file, save

from raxss import Config
from raxss._core.sealing import (
    FACTS,
    FILES,
    SEAL,
    SEALED,
    TENSORS,
    WEIGHTS,
    open_plain,
    read_tensor_header,
    sealed_text,
)
from raxss.errors import ConfigError


def facts_of(folder):
    """The entries of config.json without those that belong to the seal."""
    facts = json.loads((folder / FACTS).read_text("utf-8"))
    return {name: value for name, value in facts.items() if name not in (SEAL, FILES, TENSORS)}


def reseal(folder, change=None, *, tensors=None, weights=None, keep_hash=False):
    """Change entries of config.json, or tensors, or the bytes of the weights, and seal the folder again.

    ``change`` edits the entries in place, ``tensors`` edits a mapping of names to tensors in place.
    """
    facts = facts_of(folder)
    if tensors is not None:
        kept = load_file(folder / WEIGHTS)
        tensors(kept)
        kept = {name: torch.as_tensor(value).contiguous() for name, value in kept.items()}
        weights = save(kept, {"format": "raxss-model-1"})
    if weights is not None:
        (folder / WEIGHTS).write_bytes(weights)
    contents = {name: (folder / name).read_bytes() for name in SEALED}
    facts["weights_sha256"] = hashlib.sha256(contents[WEIGHTS]).hexdigest()
    if change is not None:
        change(facts)
    if not keep_hash:
        with contextlib.suppress(
            ConfigError, KeyError, TypeError, AttributeError
        ):  # such settings are refused anyway
            facts["config_hash"] = Config().updated(facts["settings"]).hash
    (folder / FACTS).write_text(sealed_text(facts, contents, described(folder)), "utf-8")
    return folder


def described(folder):
    """Dtypes and shapes of the tensors; none where the file is not one of tensors."""
    try:
        with open_plain(folder / WEIGHTS, WEIGHTS, most=2**40) as file:
            return read_tensor_header(file, WEIGHTS, most_tensors=2**40).described()
    except ValueError:
        return {}


def unseal(folder):
    """The folder as raxss 0.1 would have written it."""
    facts = facts_of(folder) | {"format": "raxss-model-1"}
    (folder / FACTS).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")
    return folder
