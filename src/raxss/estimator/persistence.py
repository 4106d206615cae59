"""Model folders: saving and loading of fitted models.

    RAxSSClassifier <-> folder: model.safetensors, config.json, settings.toml, history.csv, README.md

The folder is written atomically. Reading it runs no code from it: weights are safetensors, the rest is text. It
is sealed: config.json has the SHA-256 of every file, of itself as well, and dtype and shape of every tensor,
and a folder that differs in a byte is refused. A hash does not stop a forger, who can compute it anew
(_core/sealing.py), so sizes that a folder states are compared with its weights before memory is allocated for
them. Where a search chose the settings, search.html and search.json show it; they are not sealed, nor read.
"""

from __future__ import annotations

import hashlib
import io
import math
import platform
import sys
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import jinja2
import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from safetensors.torch import load, save
from torch import nn

from raxss._core.atomic import whole_folder, write_bytes
from raxss._core.memory import gigabytes
from raxss._core.renames import KEY, current_names, current_tables
from raxss._core.sealing import (
    CARD,
    FACTS,
    FORMAT,
    HISTORY,
    MOST_BYTES,
    SETTINGS,
    UNSEALED_FORMAT,
    WEIGHTS,
    ModelFiles,
    open_model,
    sealed_text,
)
from raxss._core.version import __version__
from raxss.data.prepare.preprocessing import Scaling
from raxss.data.training_overlap import TrainingRecord
from raxss.errors import ModelError
from raxss.estimator.at_once import is_by_gradients
from raxss.estimator.config import ADDED_LATER, Config
from raxss.method.backbones.protocol import build_backbone, describe, n_features, n_outputs_for
from raxss.method.backbones.window_classifiers import is_fitted_at_once
from raxss.method.backbones.window_numbers import with_numbers
from raxss.method.class_weights import checked_class_weight, with_labels
from raxss.method.feature_heads import FeatureHeads, heads_in_use
from raxss.method.training.checkpoints import DTYPES, refuse_not_finite, refuse_other_tensors, state_of
from raxss.uncertainty.calibration import LEVELS, calibration_named
from raxss.uncertainty.calibration.maps import Calibration
from raxss.uncertainty.decision import ARGMAX, DecisionThreshold
from raxss.uncertainty.gaps import GapFinding
from raxss.uncertainty.learning import LearningReport
from raxss.uncertainty.not_learned import diagnose
from raxss.uncertainty.ood import OODDetector
from raxss.uncertainty.reference_forest import ReferenceForest
from raxss.uncertainty.validation import ValidationReport

if TYPE_CHECKING:
    from raxss.estimator.classifier import RAxSSClassifier
    from raxss.estimator.search_report import SearchReport

_ARRAYS = ("feature_mean_", "feature_scale_")
#: Prefixes of tensors; "trial/" is the validation report, "familiar/" the OOD detector.
_PARTS = ("backbone/", "scaling/", "calibration/", "trial/", "familiar/", "heads/", "reference/")
_CLASS_KINDS = "biufUO"  # of dtypes: truth values, numbers, texts
MOST_CLASS_BYTES = 2**24  # of all class names together: NumPy gives each the room of the longest
MOST_COLUMNS = 1000  # of the history
MOST_LETTERS = 500  # of the reason in a message, which may quote options of any length

Model = TypeVar("Model", bound="RAxSSClassifier")


def versions() -> dict[str, str]:
    """Versions that figures depend on."""
    return {
        "raxss": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
    }


def save_model(
    model: RAxSSClassifier, folder: Path, *, overwrite: bool, search: SearchReport | None = None
) -> Path:
    """Write the model folder; a ``search`` that chose its settings is shown in the card and in two files."""
    refuse_unsaveable(model.backbone_)
    with whole_folder(folder, overwrite=overwrite) as place:
        tensors = _tensors(model)
        weights = _safetensors(tensors)
        facts = describe_model(model, weights)
        contents = {
            WEIGHTS: weights,
            SETTINGS: model.current_config.to_toml().encode(),
            HISTORY: model.history_.to_csv(index=False).encode(),
            CARD: _card(facts, search).encode(),
        }
        names = {dtype: name for name, dtype in DTYPES.items()}
        described = {
            name: [names.get(tensor.dtype), list(tensor.shape)] for name, tensor in sorted(tensors.items())
        }
        contents[FACTS] = sealed_text(facts, contents, described).encode()
        for name, content in contents.items():
            if len(content) > MOST_BYTES[name]:
                raise ModelError(
                    f"the model cannot be saved: its {name} would have {gigabytes(len(content))}, at most "
                    f"{gigabytes(MOST_BYTES[name])} can be read back. Fit on fewer series, or a smaller network."
                )
            write_bytes(place / name, content)
        for name, content in ({} if search is None else search.files()).items():
            write_bytes(place / name, content)
    return folder


def describe_model(model: RAxSSClassifier, weights: bytes | None = None) -> dict[str, Any]:
    """The entries of config.json; ``weights``: the bytes of model.safetensors, where they are at hand."""
    config, calibration, decision = model.current_config, model.calibration_, model.decision_threshold_
    weights = _safetensors(_tensors(model)) if weights is None else weights
    return {
        "format": FORMAT,
        "weights_sha256": hashlib.sha256(weights).hexdigest(),
        "config_hash": config.hash,
        "settings": config.tables(),
        "classes": model.classes_.tolist(),
        "classes_dtype": model.classes_.dtype.str,
        "class_weight": class_weight_pairs(model.class_weight, config.training.class_weight),
        "n_variates": model.n_variates_,
        "n_features_in": getattr(model, "n_features_in_", None),
        "feature_names_in": np.asarray(getattr(model, "feature_names_in_", [])).tolist(),
        "window_length": model.window_length_,
        "preparation": model.preparation_,
        "temperature": model.temperature_,
        "calibration": None if calibration is None else calibration.method,
        "calibration_level": model.calibration_level_,
        "trial": None if model.validation_report_ is None else model.validation_report_.to_json(),
        "decision_threshold": None if decision is None else decision.to_json(),
        "gaps": None if model.gap_finding_ is None else model.gap_finding_.to_json(),
        "learning": None if model.learning_report_ is None else model.learning_report_.to_json(),
        "seed": model.seed_,
        "best_epoch": model.best_epoch_,
        "interrupted": model.interrupted_,
        "network": describe(model.backbone_),
        "training_data": model.training_data_,
        "threads": torch.get_num_threads(),
        "versions": versions(),
    }


def class_weight_pairs(given: Any, checked: Mapping[str, float] | str) -> list[list[Any]] | None:
    """Labels and weights as pairs, because the keys of settings are texts; None for ``"balanced"`` and no weights.

    Parameters
    ----------
    given, checked
        ``class_weight`` of the estimator, and of the settings of the fit.

    Examples
    --------
    >>> class_weight_pairs({0: 1, 1: 5}, {"0": 1, "1": 5})
    [[0, 1], [1, 5]]
    """
    if isinstance(checked, str) or not checked:
        return None
    plain = [key.item() if isinstance(key, np.generic) else key for key in given or ()]
    labels = {str(key): key for key in plain if isinstance(key, bool | int | float | str)}
    return [[labels.get(text, text), weight] for text, weight in checked.items()]


def _read_class_weight(
    pairs: Any, checked: Mapping[str, float] | str, classes: NDArray[Any]
) -> Mapping[Any, float] | str | None:
    """``class_weight`` of the estimator, its labels as they were given; in older folders those of the classes."""
    if isinstance(checked, str) or not checked:
        return checked or None
    if pairs is None:
        return with_labels(checked, classes)
    found = dict(map(tuple, pairs))
    if any(type(label) not in (bool, int, float, str) for label in found) or (
        checked_class_weight(found) != checked
    ):
        raise ValueError("its class_weight is not that of its settings")
    return found


def _tensors(model: RAxSSClassifier) -> dict[str, torch.Tensor]:
    """All fitted arrays, by name."""
    arrays = {name: getattr(model, name) for name in _ARRAYS}
    arrays |= {"scaling/mean": model.scaling_.mean, "scaling/deviation": model.scaling_.deviation}
    if model.calibration_ is not None:
        arrays |= {f"calibration/{name}": knots for name, knots in model.calibration_.arrays().items()}
    if model.validation_report_ is not None:
        arrays |= {f"trial/{name}": scores for name, scores in model.validation_report_.scores.items()}
    if model.ood_detector_ is not None:
        arrays |= {f"familiar/{name}": array for name, array in model.ood_detector_.arrays().items()}
    if model.reference_forest_ is not None:
        arrays |= {f"reference/{name}": array for name, array in model.reference_forest_.arrays().items()}
    states = {"backbone": state_of(model.backbone_)}
    states |= {} if model.heads_ is None else {"heads": state_of(model.heads_)}
    tensors = {f"{part}/{name}": value for part, state in states.items() for name, value in state.items()}
    tensors |= {name: torch.tensor(array) for name, array in arrays.items()}
    return {name: value.contiguous() for name, value in tensors.items()}


def _safetensors(tensors: dict[str, torch.Tensor]) -> bytes:
    """The bytes of model.safetensors; the format in it stays, because reports have their hash."""
    return save(tensors, {"format": UNSEALED_FORMAT})


def _card(facts: dict[str, Any], search: SearchReport | None = None) -> str:
    """The model card. Class names are escaped, since cards are displayed as HTML."""
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined)
    environment.filters["cell"] = lambda text: " ".join(str(text).replace("|", "/").split())
    template = (resources.files("raxss.estimator") / "model_card.md.j2").read_text("utf-8")
    entry, classes = facts["decision_threshold"], facts["classes"]
    decision = None if entry is None else DecisionThreshold.from_json(entry, len(classes))
    gaps = facts["gaps"] and GapFinding.from_json(facts["gaps"]).describe()
    entry = facts["learning"]
    diagnosis = None if entry is None else diagnose(LearningReport.from_json(entry))
    trains = is_by_gradients(
        Config.from_tables(facts["settings"]), []
    )  # members of a mixture are named in them
    return environment.from_string(template).render(
        facts=facts, trains=trains, decision=decision, gaps=gaps, diagnosis=diagnosis, search=search
    )


def load_model(kind: type[Model], folder: Path, *, backbone: Any, device: str) -> Model:
    """Read a model folder; parts that do not go together are refused.

    config.json is compared with the header of the weights before the network is built and the tensors are read.
    """
    with open_model(folder) as files:
        try:
            return _read_model(kind, files, backbone=backbone, device=device)
        except ModelError:
            raise
        except Exception as error:  # of any kind: the folder may hold anything
            reason = str(error)[:MOST_LETTERS].rstrip(".")
            raise ModelError(
                f"the model {folder.name!r} cannot be read: {type(error).__name__}: {reason}. A folder written by "
                "save_pretrained is needed, with all its files as they were. Copy it again or refit."
            ) from error


def _read_model(kind: type[Model], files: ModelFiles, *, backbone: Any, device: str) -> Model:
    facts, header = current_names(files.facts, KEY), files.header
    settings = facts["settings"] = current_tables(_mapping(facts, "settings"))
    stated = Config.from_tables(settings)
    _refuse_other_settings(facts, stated)
    if backbone is not None:
        settings = settings | {"backbone": settings["backbone"] | {"backbone": backbone}}
    elif ":" in str(stated.backbone.backbone):
        raise ModelError(
            f"model {files.name!r} was fitted with a network of your own, {stated.backbone.backbone}, which is not "
            "loaded by name for safety. Pass it: from_pretrained(folder, backbone=YourNetwork)."
        )
    config, classes = Config.from_tables(settings), _read_classes(facts)
    weights = _read_class_weight(facts.get("class_weight"), config.training.class_weight, classes)
    model = kind.from_config(config, device=device, class_weight=weights)
    model.config_ = model.check_settings()
    _read_plain_facts(model, facts)
    model.classes_ = classes
    model.training_data_ = _read_training_data(facts)
    _refuse_other_window(model, stated)
    model.history_ = _read_history(files.history)
    foreign = [name for name in header.dtypes if name not in _ARRAYS and not name.startswith(_PARTS)]
    if foreign:
        raise ValueError(f"{len(foreign)} of its tensors are not of a model")
    network = build_backbone(
        model.backbone,
        n_variates=model.n_variates_,
        window_length=model.window_length_,
        n_outputs=n_outputs_for(len(model.classes_)),
        options=model.backbone_options,
        n_numbers=header.n_numbers("backbone/"),
    )
    own = not type(network).__module__.startswith("raxss.")  # whose buffers may be masks of -inf
    if not is_fitted_at_once(network):
        shape = model.n_variates_, model.window_length_, n_outputs_for(len(model.classes_))
        network = with_numbers(network, *shape, share_missing=model.share_missing, context=model.context)
    refuse_other_tensors(header, "backbone/", network.state_dict(), any_size=any_size_of(network))
    tensors = load(files.weights())
    parameters = {f"backbone/{name}" for name, _ in network.named_parameters(remove_duplicate=False)}
    buffers = {name for name in tensors if name.startswith("backbone/")} - parameters
    refuse_not_finite(tensors, never_infinite=[name for name in tensors if not (own and name in buffers)])
    network.load_state_dict(_taken(tensors, "backbone/"))
    model.backbone_ = network
    _read_feature_scaling(model, tensors)
    model.scaling_ = _read_scaling(model, tensors)
    if facts.get("calibration") is None and model.calibration != "none":
        raise ValueError(f"its settings ask for calibration {model.calibration!r}, but it has none")
    model.calibration_ = _read_calibration(facts, tensors, len(model.classes_))
    model.validation_report_ = _read_validation_report(facts, tensors)
    model.ood_detector_ = _read_ood_detector(tensors)
    model.heads_ = _read_heads(model, tensors)
    model.decision_threshold_ = _read_decision(model, facts)
    gaps = facts.get("gaps")  # not in older folders
    model.gap_finding_ = None if gaps is None else GapFinding.from_json(gaps)
    model.learning_report_, model.reference_forest_ = _read_learning(model, facts, tensors)
    return model


def any_size_of(network: nn.Module) -> set[str]:
    """Tensors of a network whose sizes come from the training data, such as the nodes of trees."""
    return {
        f"{place}.{name}" if place else name
        for place, module in network.named_modules()
        for name in getattr(module, "any_size", ())
    }


def refuse_unsaveable(backbone: nn.Module) -> None:
    """Refuse a classifier that cannot be written as arrays."""
    for module in backbone.modules():
        if why := getattr(module, "cannot_be_saved", ""):
            raise ModelError(why)


def _mapping(facts: dict[str, Any], name: str) -> dict[str, Any]:
    value = facts[name]
    if not isinstance(value, dict):
        raise ValueError(f"its {name} are {type(value).__name__}, needed is an object with names and values")
    return value


def _whole_number(facts: dict[str, Any], name: str, least: int) -> int:
    value = facts[name]
    if type(value) is not int or value < least:
        raise ValueError(f"its {name} is {str(value)[:40]!r}, needed is a whole number of at least {least}")
    return value


def _refuse_other_settings(facts: dict[str, Any], stated: Config) -> None:
    """Refuse settings that differ from config_hash, the only check of a folder without a seal.

    Folders that are older than a setting which changed all hashes (bank_size) are not checked.
    """
    given = facts["settings"]
    absent = {
        name
        for stage, table in stated.tables().items()
        if stage in given or stage not in ("calibration", "augmentation")
        for name in set(table) - set(given.get(stage, ()))
    }
    if absent <= set(ADDED_LATER) and facts["config_hash"] != stated.hash:
        raise ValueError(
            f"its settings have the hash {stated.hash!r}, but config_hash is {str(facts['config_hash'])[:40]!r}; "
            "they were changed after the model was saved"
        )


def _read_plain_facts(model: RAxSSClassifier, facts: dict[str, Any]) -> None:
    """Attributes that config.json has as plain values."""
    model.n_variates_ = _whole_number(facts, "n_variates", 1)
    model.window_length_ = _whole_number(facts, "window_length", 1)
    model.preparation_ = facts.get("preparation", "")
    if not isinstance(model.preparation_, str):
        raise ValueError("its preparation is not a text")
    names = facts["feature_names_in"]
    if facts["n_features_in"] is not None:
        model.n_features_in_ = _whole_number(facts, "n_features_in", 1)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError("its feature_names_in are not texts")
    if names:
        if len(names) != facts["n_features_in"]:
            raise ValueError(f"it has {len(names)} names of features, but n_features_in is not that number")
        model.feature_names_in_ = np.array(names, dtype=object)
    temperature = facts["temperature"]
    if type(temperature) not in (int, float) or not 0 < temperature <= sys.float_info.max:
        raise ValueError(f"its temperature is {str(temperature)[:40]}, needed is a number above 0")
    model.temperature_ = float(temperature)
    model.seed_ = model.random_state = _whole_number(facts, "seed", 0)
    model.best_epoch_ = _whole_number(facts, "best_epoch", -1)
    model.interrupted_ = facts["interrupted"]
    if not isinstance(model.interrupted_, bool):
        raise ValueError("its entry 'interrupted' is neither true nor false")
    model.calibration_level_ = facts.get("calibration_level", "window")
    if model.calibration_level_ not in LEVELS:
        raise ValueError(f"its calibration is of level {str(model.calibration_level_)[:40]!r}")


def _read_classes(facts: dict[str, Any]) -> NDArray[Any]:
    """The classes, if `fit` could have found them: distinct, finite, ascending, not truncated by their dtype."""
    names, stated = facts["classes"], facts["classes_dtype"]
    if not isinstance(names, list) or not all(isinstance(name, str | bool | int | float) for name in names):
        shape = np.shape(names) if isinstance(names, list) and len(names) < 1000 else ()
        raise ValueError(f"it has classes of shape {shape}, needed is a list of names or numbers")
    if len(names) < 2:
        raise ValueError(f"it has classes of shape ({len(names)},), needed are two at least")
    dtype = np.dtype(stated) if isinstance(stated, str) and len(stated) < 16 else None
    if dtype is None or dtype.kind not in _CLASS_KINDS:
        raise ValueError(
            f"its classes_dtype is {str(stated)[:40]!r}, needed is the dtype of numbers or texts"
        )
    if len(names) * dtype.itemsize > MOST_CLASS_BYTES:
        raise ValueError(
            f"its {len(names)} classes of dtype {stated!r} would take {gigabytes(len(names) * dtype.itemsize)}; "
            f"at most {gigabytes(MOST_CLASS_BYTES)} are allowed, because names of classes are short"
        )
    if any(isinstance(name, float) and not math.isfinite(name) for name in names):
        raise ValueError("one of its classes is not a finite number")
    classes = np.array(names, dtype=dtype)
    if [(type(name), name) for name in classes.tolist()] != [(type(name), name) for name in names]:
        raise ValueError(
            f"the names of its classes do not fit their dtype {stated!r}, which would change them"
        )
    if len(set(names)) != len(names):
        raise ValueError("two of its classes have the same name")
    if not (classes[1:] > classes[:-1]).all():
        raise ValueError(
            "its classes are not in ascending order, as fit leaves them; its predictions would be mixed up"
        )
    return classes


def _read_training_data(facts: dict[str, Any]) -> dict[str, Any]:
    data = _mapping(facts, "training_data")
    rates = data["rates"]
    if not isinstance(rates, list) or not all(type(rate) in (int, float) and rate > 0 for rate in rates):
        raise ValueError("the rates of its training data are no numbers above 0")
    TrainingRecord.of(data)  # or a ValueError
    return data


def _refuse_other_window(model: RAxSSClassifier, stated: Config) -> None:
    """Refuse windows that are not as long as the setting, or the longest series if that is shorter."""
    requested, lengths = stated.windows.window_length, model.training_data_.get("n_samples")
    if requested == "auto" or stated.windows.stride == "auto":
        raise ValueError("its settings leave window length or stride open, which fit has chosen")
    needed, model.stride_ = requested, stated.windows.stride
    if lengths is not None:
        if not isinstance(lengths, list) or [type(length) for length in lengths] != [int, int]:
            raise ValueError("the lengths of its training series are not two whole numbers")
        needed = min(needed, lengths[1])
        n_features_in = getattr(model, "n_features_in_", lengths[0])
        if not lengths[0] <= n_features_in <= lengths[1]:
            raise ValueError("its n_features_in is not the length of any of its training series")
    if model.window_length_ > needed or (lengths is not None and model.window_length_ != needed):
        raise ValueError(
            f"its windows have {str(model.window_length_)[:40]} samples, but its settings and training series ask "
            f"for {needed}"
        )


def _read_history(content: bytes) -> pd.DataFrame:
    """One row an epoch; columns are counted first, since millions would take minutes to read."""
    n_columns = content.partition(b"\n")[0].count(b",") + 1
    if n_columns > MOST_COLUMNS:
        raise ValueError(f"its {HISTORY} has {n_columns:,} columns, at most {MOST_COLUMNS:,} are read")
    history = pd.read_csv(io.BytesIO(content))
    if "epoch" not in history:
        raise ValueError(f"its {HISTORY} has no column 'epoch'")
    return history


def _taken(tensors: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """Remove and return the tensors with this prefix, named without it."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors.pop(name) for name in names}


def _doubles(tensor: torch.Tensor, name: str, shape: tuple[int, ...]) -> NDArray[np.float64]:
    """A tensor as an array, if it is float64 of this shape."""
    if tensor.dtype != torch.float64 or tuple(tensor.shape) != shape:
        found = f"{str(tensor.dtype).removeprefix('torch.')} of shape {tuple(tensor.shape)}"
        raise ValueError(f"its {name} is {found}, needed is float64 of shape {shape}")
    array: NDArray[np.float64] = tensor.numpy()
    return array


def _read_feature_scaling(model: RAxSSClassifier, tensors: dict[str, torch.Tensor]) -> None:
    """Mean and deviation of each feature of the network; empty where it has none."""
    width = 0
    if callable(getattr(model.backbone_, "features", None)):
        width = n_features(model.backbone_, model.n_variates_, model.window_length_)
    for name in _ARRAYS:
        setattr(model, name, _doubles(tensors.pop(name), name, (width,)))
    if (model.feature_scale_ <= 0).any():
        raise ValueError("its feature_scale_ has numbers that are not above 0")


def _read_scaling(model: RAxSSClassifier, tensors: dict[str, torch.Tensor]) -> Scaling:
    """Mean and deviation of each variate; empty where series are scaled by their own, or not at all."""
    shape = (model.n_variates_,) if model.scaling == "train" else (0,)
    mean, deviation = (
        _doubles(tensors.pop(f"scaling/{name}"), f"scaling/{name}", shape) for name in ("mean", "deviation")
    )
    if (deviation <= 0).any():
        raise ValueError("its scaling/deviation has numbers that are not above 0")
    return Scaling(model.scaling, mean, deviation)


def _read_calibration(
    facts: dict[str, Any], tensors: dict[str, torch.Tensor], n_classes: int
) -> Calibration | None:
    """The calibration map; None in folders without one, or older than it."""
    method = facts.get("calibration")
    if method is None:
        if any(name.startswith("calibration/") for name in tensors):
            raise ValueError("it has the tensors of a calibration, but no calibration")
        return None
    if not isinstance(method, str):
        raise ValueError(f"its calibration is {method!r}; needed is the name of a method")
    arrays = {name: item.numpy() for name, item in _taken(tensors, "calibration/").items()}
    calibration = calibration_named(method).from_arrays(arrays)
    if calibration.n_classes != n_classes:
        raise ValueError(f"its calibration is of {calibration.n_classes} classes, but it has {n_classes}")
    return calibration


def _read_validation_report(
    facts: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> ValidationReport | None:
    """The validation report; None in folders without one, or older than it."""
    scores = {name: item.numpy() for name, item in _taken(tensors, "trial/").items()}
    report = facts.get("trial")
    if report is None and scores:
        raise ValueError("it has the scores of a validation report, but no report")
    return None if report is None else ValidationReport.from_json(report, scores)


def _read_decision(model: RAxSSClassifier, facts: dict[str, Any]) -> DecisionThreshold | None:
    """The tuned decision threshold; None in folders without one, or older than it."""
    entry = facts.get("decision_threshold")
    if entry is None and model.decision_threshold != ARGMAX:
        raise ValueError("its settings ask for a tuned decision threshold, but it has none")
    return None if entry is None else DecisionThreshold.from_json(entry, len(model.classes_))


def _read_ood_detector(tensors: dict[str, torch.Tensor]) -> OODDetector | None:
    """The OOD detector; None in folders that are older than it."""
    arrays = {name: item.numpy() for name, item in _taken(tensors, "familiar/").items()}
    return OODDetector.from_arrays(arrays) if arrays else None


def _read_learning(
    model: RAxSSClassifier, facts: dict[str, Any], tensors: dict[str, torch.Tensor]
) -> tuple[LearningReport | None, ReferenceForest | None]:
    """Learning report and reference forest; None in folders that are older than them."""
    arrays = {name: item.numpy() for name, item in _taken(tensors, "reference/").items()}
    entry = facts.get("learning")
    if (entry is None) != (not arrays):
        raise ValueError("it has a learning report or the trees of a reference forest, but not both")
    if entry is None:
        return None, None
    shape = {"n_classes": len(model.classes_), "n_variates": model.n_variates_}
    return LearningReport.from_json(entry), ReferenceForest.from_arrays(arrays, **shape)


def _read_heads(model: RAxSSClassifier, tensors: dict[str, torch.Tensor]) -> FeatureHeads | None:
    """Gate and projection; None in folders without them, or older than them."""
    state = _taken(tensors, "heads/")
    heads = None
    if state:
        projection, gated = state.get("projection.weight"), any(name.startswith("gate.") for name in state)
        n_projected = 0 if projection is None else len(projection)
        if any(item.dtype != torch.float64 for item in state.values()):
            raise ValueError("the weights of its gate or projection are not float64")
        width = len(model.feature_mean_)
        with torch.device("meta"):  # initial weights of a large projection would take minutes
            heads = FeatureHeads(width, projection=n_projected, gated=gated).double()
        heads.load_state_dict(state, assign=True)
        heads.mean, heads.scale = torch.zeros(width).double(), torch.ones(width).double()
    return heads_in_use(heads, projection=model.projection, weighting=model.weighting)
