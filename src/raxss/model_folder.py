"""How is a fitted model kept?

    RAxSSClassifier <-> folder: model.safetensors, config.json, settings.toml, history.csv, README.md

The folder appears whole or not at all. Reading it runs no code from it: weights are safetensors, the rest is
text, and config.json carries the hash of the weights.
"""

from __future__ import annotations

import hashlib
import json
import math
import platform
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jinja2
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from raxss import __version__
from raxss.backbones import build_backbone, describe, n_outputs_for
from raxss.calibration import LEVELS, Calibration, calibration_named
from raxss.checkpoints import state_of
from raxss.config import Config
from raxss.errors import BackboneError, ConfigError, ModelError
from raxss.familiarity import Familiar
from raxss.feature_heads import FeatureHeads, heads_in_use
from raxss.preparation import Scaling
from raxss.recordings.series import Series
from raxss.storage import sha256_of, whole_folder, write_bytes, write_json, write_text
from raxss.training_overlap import TrainingRecord, kept_of_training
from raxss.trial import Trial

if TYPE_CHECKING:
    from raxss.estimator import RAxSSClassifier

FORMAT = "raxss-model-1"
WEIGHTS, FACTS, CARD, SETTINGS, HISTORY = (
    "model.safetensors",
    "config.json",
    "README.md",
    "settings.toml",
    "history.csv",
)
_ARRAYS = ("feature_mean_", "feature_scale_")

Model = TypeVar("Model", bound="RAxSSClassifier")


def versions() -> dict[str, str]:
    """What a number depends on besides the settings."""
    return {
        "raxss": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def save_model(model: RAxSSClassifier, folder: Path, *, overwrite: bool) -> Path:
    """Write the model folder."""
    with whole_folder(folder, overwrite=overwrite) as place:
        weights = _weights(model)
        facts = describe_model(model, weights)
        write_bytes(place / WEIGHTS, weights)
        write_json(place / FACTS, facts)
        model.current_config.save(place / SETTINGS)
        write_text(place / HISTORY, model.history_.to_csv(index=False))
        write_text(place / CARD, _card(facts))
    return folder


def describe_model(model: RAxSSClassifier, weights: bytes | None = None) -> dict[str, Any]:
    """What config.json says: settings, classes, what it was trained on and with, the hash of its weights.

    ``weights``: as they are kept, where they are at hand.
    """
    config, calibration = model.current_config, model.calibration_
    return {
        "format": FORMAT,
        "weights_sha256": hashlib.sha256(_weights(model) if weights is None else weights).hexdigest(),
        "config_hash": config.hash,
        "settings": config.tables(),
        "classes": model.classes_.tolist(),
        "classes_dtype": model.classes_.dtype.str,
        "n_variates": model.n_variates_,
        "n_features_in": getattr(model, "n_features_in_", None),
        "feature_names_in": np.asarray(getattr(model, "feature_names_in_", [])).tolist(),
        "window_length": model.window_length_,
        "preparation": model.preparation_,
        "temperature": model.temperature_,
        "calibration": None if calibration is None else calibration.method,
        "calibration_level": model.calibration_level_,
        "trial": None if model.trial_ is None else model.trial_.to_json(),
        "seed": model.seed_,
        "best_epoch": model.best_epoch_,
        "interrupted": model.interrupted_,
        "network": describe(model.backbone_),
        "training_data": model.training_data_,
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def _weights(model: RAxSSClassifier) -> bytes:
    """Everything that was learned, as model.safetensors has it."""
    tensors = {f"backbone/{name}": value.contiguous() for name, value in state_of(model.backbone_).items()}
    tensors |= {name: torch.from_numpy(np.ascontiguousarray(getattr(model, name))) for name in _ARRAYS}
    tensors["scaling/mean"] = torch.from_numpy(np.ascontiguousarray(model.scaling_.mean))
    tensors["scaling/deviation"] = torch.from_numpy(np.ascontiguousarray(model.scaling_.deviation))
    calibration = model.calibration_
    if calibration is not None:
        knots = calibration.arrays()
        tensors |= {f"calibration/{name}": torch.from_numpy(one.copy()) for name, one in knots.items()}
    if model.trial_ is not None:
        tensors |= {f"trial/{name}": torch.from_numpy(one) for name, one in model.trial_.scores.items()}
    if model.familiar_ is not None:
        arrays = model.familiar_.arrays()
        tensors |= {
            f"familiar/{name}": torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in arrays
        }
    if model.heads_ is not None:
        tensors |= {f"heads/{name}": value.contiguous() for name, value in state_of(model.heads_).items()}
    return save(tensors, {"format": FORMAT})


def _card(facts: dict[str, Any]) -> str:
    """The model card. Class names are the user's: they are escaped, since cards get shown as HTML."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["cell"] = lambda text: " ".join(str(text).replace("|", "/").split())
    template = (resources.files("raxss") / "model_card.md.j2").read_text("utf-8")
    return environment.from_string(template).render(facts=facts)


def load_model(kind: type[Model], folder: Path, *, backbone: Any, device: str) -> Model:
    """Read a model folder, refusing whatever does not fit together."""
    facts = _read_facts(folder)
    try:
        if sha256_of(folder / WEIGHTS) != facts["weights_sha256"]:
            raise ModelError(
                f"{WEIGHTS} in model {folder.name!r} is not the file that {FACTS} was written with (its SHA-256 "
                "differs); the model is damaged or was mixed with another. Copy it again or refit."
            )
        tensors = load_file(folder / WEIGHTS)
        settings = facts["settings"]
        if backbone is not None:
            settings = settings | {"backbone": settings["backbone"] | {"backbone": backbone}}
        elif ":" in settings["backbone"]["backbone"]:
            raise ModelError(
                f"model {folder.name!r} was fitted with a network of your own, "
                f"{settings['backbone']['backbone']}, which is not loaded by name for safety. Pass it: "
                "from_pretrained(folder, backbone=YourNetwork)."
            )
        model = kind.from_config(Config.from_tables(settings), device=device)
        model.config_ = model.config
        model.classes_ = np.array(facts["classes"], dtype=np.dtype(facts["classes_dtype"]))
        if model.classes_.ndim != 1 or len(model.classes_) < 2:
            raise ValueError(f"it has classes of shape {model.classes_.shape}, needed are two at least")
        model.n_variates_, model.window_length_ = int(facts["n_variates"]), int(facts["window_length"])
        model.preparation_ = str(facts.get("preparation", ""))
        if facts["n_features_in"] is not None:
            model.n_features_in_ = int(facts["n_features_in"])
        if facts["feature_names_in"]:
            model.feature_names_in_ = np.array(facts["feature_names_in"], dtype=object)
        model.temperature_, model.seed_ = float(facts["temperature"]), int(facts["seed"])
        model.random_state = model.seed_
        model.best_epoch_, model.interrupted_ = int(facts["best_epoch"]), bool(facts["interrupted"])
        if not (math.isfinite(model.temperature_) and model.temperature_ > 0):
            raise ValueError(f"its temperature is {model.temperature_}, needed is a number above 0")
        model.training_data_ = facts["training_data"]
        if not all(isinstance(rate, int | float) for rate in model.training_data_["rates"]):
            raise ValueError("the rates of its training data are no numbers")
        TrainingRecord.of(model.training_data_)  # or an error
        model.history_ = pd.read_csv(folder / HISTORY)
        for name in _ARRAYS:
            setattr(model, name, tensors.pop(name).numpy())
        model.scaling_ = Scaling(
            model.scaling, tensors.pop("scaling/mean").numpy(), tensors.pop("scaling/deviation").numpy()
        )
        model.calibration_ = _read_calibration(facts, tensors, len(model.classes_))
        if model.calibration_ is None and model.calibration != "none":
            raise ValueError(f"its settings ask for calibration {model.calibration!r}, but it has none")
        model.calibration_level_ = facts.get("calibration_level", "window")
        if model.calibration_level_ not in LEVELS:
            raise ValueError(f"its calibration is of level {model.calibration_level_!r}")
        model.trial_ = _read_trial(facts, tensors)
        model.familiar_ = _read_familiar(tensors)
        model.heads_ = _read_heads(model, tensors)
        model.backbone_ = build_backbone(
            model.backbone,
            n_variates=model.n_variates_,
            window_length=model.window_length_,
            n_outputs=n_outputs_for(len(model.classes_)),
            options=model.backbone_options,
        )
        model.backbone_.load_state_dict(
            {name.removeprefix("backbone/"): one for name, one in tensors.items()}
        )
    except ModelError:
        raise
    except (
        OSError,
        KeyError,
        TypeError,
        ValueError,
        AttributeError,
        RuntimeError,
        ArithmeticError,
        MemoryError,
        SafetensorError,
        ConfigError,
        BackboneError,
    ) as error:
        raise ModelError(
            f"the model {folder.name!r} cannot be read: {type(error).__name__}: {error}. A folder written by "
            "save_pretrained is needed, with all its files as they were. Copy it again or refit."
        ) from error
    return model


def _read_calibration(
    facts: dict[str, Any], tensors: dict[str, torch.Tensor], n_classes: int
) -> Calibration | None:
    """The map of posteriors, taken out of the tensors; None in folders that have none, or are older than it."""
    method = facts.get("calibration")
    if method is None:
        return None
    if not isinstance(method, str):
        raise ValueError(f"its calibration is {method!r}; needed is the name of a method")
    names = [name for name in tensors if name.startswith("calibration/")]
    arrays = {name.removeprefix("calibration/"): tensors.pop(name).numpy() for name in names}
    calibration = calibration_named(method).from_arrays(arrays)
    if calibration.n_classes != n_classes:
        raise ValueError(f"its calibration is of {calibration.n_classes} classes, but it has {n_classes}")
    return calibration


def _read_trial(facts: dict[str, Any], tensors: dict[str, torch.Tensor]) -> Trial | None:
    """What was said of the validation part; None in folders that have none, or are older than it."""
    names = [name for name in tensors if name.startswith("trial/")]
    scores = {name.removeprefix("trial/"): tensors.pop(name).numpy() for name in names}
    told = facts.get("trial")
    return None if told is None else Trial.from_json(told, scores)


def _read_familiar(tensors: dict[str, torch.Tensor]) -> Familiar | None:
    """What is usual among the training series; None in folders that are older than it."""
    names = [name for name in tensors if name.startswith("familiar/")]
    arrays = {name.removeprefix("familiar/"): tensors.pop(name).numpy() for name in names}
    return Familiar.from_arrays(arrays) if arrays else None


def _read_heads(model: RAxSSClassifier, tensors: dict[str, torch.Tensor]) -> FeatureHeads | None:
    """Gate and projection, taken out of the tensors; None in folders that have none, or are older than they."""
    names = [name for name in tensors if name.startswith("heads/")]
    state = {name.removeprefix("heads/"): tensors.pop(name) for name in names}
    heads = None
    if state:
        projection, gated = state.get("projection.weight"), any(name.startswith("gate.") for name in state)
        n_projected = 0 if projection is None else len(projection)
        heads = FeatureHeads(len(model.feature_mean_), projection=n_projected, gated=gated).double()
        heads.load_state_dict(state)
        if not all(bool(value.isfinite().all()) for value in state.values()):
            raise ValueError("the weights of its gate or projection are not finite")
    return heads_in_use(heads, projection=model.projection, weighting=model.weighting)


def describe_data(
    series: list[Series],
    labels: NDArray[Any],
    groups: NDArray[Any] | None,
    held: NDArray[np.int64],
) -> dict[str, Any]:
    """What a model card says about the training data: counts and ranges, never names.

    Parameters
    ----------
    held
        Which of the series were for validation.
    """
    names, counts = np.unique(labels, return_counts=True)
    lengths = [one.n_samples for one in series]
    return {
        "n_series": len(series),
        "n_validation": len(held),
        "n_groups": None if groups is None else len(np.unique(groups)),
        "classes": {str(name): int(count) for name, count in zip(names, counts, strict=True)},
        "rates": sorted({one.rate for one in series}),
        "n_samples": [min(lengths), max(lengths)],
        **kept_of_training(series, held),  # by which predictions know what the model has seen
        "split": None,  # what kept the test part away, where somebody says so
    }


def _read_facts(folder: Path) -> dict[str, Any]:
    """config.json, if this is a model folder at all."""
    if not folder.is_dir():
        found = "a file" if folder.exists() else "nothing"
        raise ModelError(
            f"there is no model folder {folder.name!r}: {found} was found there. Give the folder that `raxss fit` "
            "or save_pretrained wrote."
        )
    missing = [name for name in (FACTS, WEIGHTS, HISTORY) if not (folder / name).is_file()]
    if missing:
        raise ModelError(
            f"the folder {folder.name!r} is not a whole raxss model: {', '.join(missing)} is missing. Give the "
            "folder that `raxss fit` or save_pretrained wrote."
        )
    try:
        facts = json.loads((folder / FACTS).read_text("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{FACTS} in model {folder.name!r} cannot be read: {error}. Copy the model again or refit."
        ) from error
    if not isinstance(facts, dict) or facts.get("format") != FORMAT:
        stated = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
        raise ModelError(
            f"the folder {folder.name!r} is not a model of this version: its format is {stated!r}, needed is "
            f"{FORMAT!r}. It may belong to another program or to a newer raxss."
        )
    return facts
