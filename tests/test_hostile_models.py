"""Hostile and damaged model folders: each is refused by name, and none changes a prediction."""

import hashlib
import json
import os
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file

from raxss import RAxSSClassifier
from raxss._core.sealing import CARD, FACTS, FORMAT, HISTORY, MOST_BYTES, SEAL, SEALED, WEIGHTS
from raxss.cli.fit import was_interrupted
from raxss.data.leakage import read_fitted
from raxss.errors import ModelError, ModelWarning
from raxss.estimator.batch import model_digest
from resealed import reseal, unseal

EVERY_FILE = (FACTS, *SEALED)
OLD = Path(__file__).parent / "data" / "model_0_1"


@pytest.fixture
def copy_of(full_folder, tmp_path):
    """Makes one fresh copy of the folder after the other."""

    def make(source=full_folder):
        folder = tmp_path / "model"
        shutil.rmtree(folder, ignore_errors=True)
        return shutil.copytree(source, folder)

    return make


def refusal(folder):
    """The message with which a folder is refused; fails where it is not."""
    with pytest.raises(ModelError, match="'model'") as caught:
        RAxSSClassifier.from_pretrained(folder, device="cpu")
    return str(caught.value)


def leaves(value, path=()):
    """The path to each value in nested mappings and lists, containers included."""
    if path:
        yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in items:
        yield from leaves(item, (*path, key))


def other(value):
    """A value of the same type that is another."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value + "x"
        case list():
            return value[::-1] if value[::-1] != value else [*value, 0]
        case dict():
            return {**value, "other": 0}
    return 0


def put(facts, path, value):
    for key in path[:-1]:
        facts = facts[key]
    facts[path[-1]] = value


def at(facts, path):
    for key in path:
        facts = facts[key]
    return facts


# The seal: whatever is changed in a folder is noticed ----------------------------------------------------------


def test_a_sealed_folder_says_what_each_file_and_tensor_is(full_folder, full_model, full_series):
    facts = json.loads((full_folder / FACTS).read_text("utf-8"))
    assert facts["format"] == FORMAT
    for name in SEALED:
        content = (full_folder / name).read_bytes()
        assert facts["files"][name] == {"size": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    tensors = load_file(full_folder / WEIGHTS)
    assert {name: shape for name, (_, shape) in facts["tensors"].items()} == {
        name: list(tensor.shape) for name, tensor in tensors.items()
    }
    assert facts["tensors"]["backbone/head.weight"][0] == "F32"
    loaded = RAxSSClassifier.from_pretrained(full_folder, device="cpu")
    np.testing.assert_array_equal(loaded.predict_proba(full_series), full_model.predict_proba(full_series))


def test_every_entry_of_the_config_that_is_edited_is_noticed(copy_of):
    folder = copy_of()
    text = (folder / FACTS).read_text("utf-8")
    paths = list(leaves(json.loads(text)))
    assert len(paths) > 400
    for path in paths:
        facts = json.loads(text)
        put(facts, path, other(at(facts, path)))
        (folder / FACTS).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")
        assert refusal(folder), path


def test_every_entry_of_the_config_that_is_missing_or_comes_twice_is_noticed(copy_of):
    folder = copy_of()
    text = (folder / FACTS).read_text("utf-8")
    for key in json.loads(text):
        facts = json.loads(text)
        del facts[key]
        (folder / FACTS).write_text(json.dumps(facts, indent=2, ensure_ascii=False) + "\n", "utf-8")
        assert refusal(folder), key
    twice = text.replace('{\n  "format"', '{\n  "temperature": 9.0,\n  "format"', 1)
    (folder / FACTS).write_text(twice, "utf-8")
    assert "was changed after the model was saved" in refusal(folder)


@pytest.mark.parametrize("name", EVERY_FILE)
def test_every_file_that_is_damaged_is_noticed(copy_of, name):
    folder, rng = copy_of(), np.random.default_rng(17)
    content = (folder / name).read_bytes()
    lengths = [0, 1, len(content) - 1, *rng.integers(len(content), size=8)]
    damaged = [content[:n] for n in lengths]
    damaged += [content + more for more in (b"\n", b" ", b"\0", b"0", content)]
    damaged += [content[1:], b"\xef\xbb\xbf" + content, content.replace(b"\n", b"\r\n") or b"\r\n"]
    first = min(len(content), 4000)  # the header of the weights lies there
    for place in (*rng.integers(len(content), size=60), *rng.integers(first, size=60)):
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(rng.integers(8))
        damaged.append(bytes(flipped))
    for item in damaged:
        if item != content:
            (folder / name).write_bytes(item)
            refusal(folder)


@pytest.mark.parametrize("name", EVERY_FILE)
def test_a_missing_file_is_noticed(copy_of, name):
    folder = copy_of()
    (folder / name).unlink()
    whole = {FACTS, WEIGHTS, HISTORY}  # needed without a seal, too
    expected = (
        f"'model' is not a whole raxss model: {name} is missing" if name in whole else f"{name} in model"
    )
    assert expected in refusal(folder)


def test_a_seal_cannot_be_taken_off_by_one_edit(copy_of):
    folder = copy_of()
    facts = json.loads((folder / FACTS).read_text("utf-8"))
    (folder / FACTS).write_text(json.dumps(facts | {"format": "raxss-model-1"}), "utf-8")
    assert "has no seal, but it has parts of one" in refusal(folder)
    del facts[SEAL]
    (folder / FACTS).write_text(json.dumps(facts), "utf-8")
    assert "was changed after the model was saved" in refusal(folder)


def test_the_message_tells_what_to_do(copy_of):
    folder = copy_of()
    text = (folder / FACTS).read_text("utf-8")
    (folder / FACTS).write_text(text.replace('"stride": 8', '"stride": 4'), "utf-8")
    assert "set_params, then save_pretrained" in refusal(folder)
    folder = copy_of()
    (folder / HISTORY).write_text("epoch,train_loss\n1,0.0\n")
    assert "history.csv in model 'model' is not the file that config.json was written with" in refusal(folder)


def test_an_audit_does_not_read_a_damaged_folder_either(copy_of):
    folder = copy_of()
    assert read_fitted(folder)[1]
    text = (folder / FACTS).read_text("utf-8")
    (folder / FACTS).write_text(text.replace('"scaling": "train"', '"scaling": "none"'), "utf-8")
    with pytest.raises(ModelError, match=r"'model' cannot be audited: .*was changed"):
        read_fitted(folder)


# Folders whose hashes were computed anew ------------------------------------------------------------------------


def with_header(content, change):
    """The content of a safetensors file after its header was changed in place."""
    n_header = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + n_header])
    change(header)
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + content[8 + n_header :]


def test_every_tensor_of_another_dtype_or_shape_is_refused(copy_of):
    folder = copy_of()
    content = (folder / WEIGHTS).read_bytes()
    tensors = load_file(folder / WEIGHTS)
    assert len(tensors) > 60
    swaps = {"F32": "I32", "F64": "I64", "I64": "F64", "I32": "F32"}
    n_tried = 0
    for name, tensor in tensors.items():

        def change_dtype(header, name=name):
            header[name]["dtype"] = swaps[header[name]["dtype"]]

        def change_shape(header, name=name):
            header[name]["shape"] = [1, *header[name]["shape"]]

        changes = [change_dtype, change_shape] if tensor.numel() else [change_dtype]
        for change in changes:
            reseal(folder, weights=with_header(content, change))
            refusal(folder)
            n_tried += 1
    assert n_tried > 120


def test_every_tensor_that_is_missing_short_or_not_finite_is_refused(copy_of):
    folder = copy_of()
    content = (folder / WEIGHTS).read_bytes()

    def spoilt(tensors, name, how):
        if how == "missing":
            del tensors[name]
        elif how == "short":
            tensors[name] = tensors[name].reshape(-1)[:-1]
        else:
            tensors[name].view(-1)[0] = float(how)

    for name, item in load_file(folder / WEIGHTS).items():
        ways = ["missing", *(["short"] if item.numel() else [])]
        ways += ["nan", "inf"] if item.numel() and item.is_floating_point() else []
        for how in ways:
            (folder / WEIGHTS).write_bytes(content)
            reseal(folder, tensors=lambda tensors, name=name, how=how: spoilt(tensors, name, how))
            message = refusal(folder)
            if how in ("nan", "inf"):
                assert f"{name!r} has numbers that are not finite" in message


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda facts: facts.update(format="another"), "its format is 'another'"),
        (lambda facts: facts.pop("classes"), "KeyError: 'classes'"),
        (lambda facts: facts.update(classes=["a"]), r"it has classes of shape \(1,\)"),
        (lambda facts: facts.update(classes=[["a", "b"], ["c", "d"]]), r"it has classes of shape \(2, 2\)"),
        (lambda facts: facts.update(classes=["a", "b", "c"]), "size mismatch"),
        (lambda facts: facts.update(classes_dtype="O8,what"), "classes_dtype|data type|not understood"),
        (lambda facts: facts.update(seed=1e300), "its seed is '1e.300'"),
        (lambda facts: facts.update(temperature=float("nan")), "its temperature is None"),
        (lambda facts: facts.update(temperature=0), "its temperature is 0"),
        (lambda facts: facts.update(training_data={}), "KeyError: 'rates'"),
        (lambda facts: facts["training_data"].update(rates=["fast"]), "rates of its training data"),
        (lambda facts: facts.update(n_variates="many"), "n_variates is 'many'"),
        (lambda facts: facts.update(window_length=7), "windows have 7 samples, .* ask for 32"),
        (lambda facts: facts["settings"]["retrieval"].update(mesure="x"), "retrieval.mesure"),
        (lambda facts: facts["settings"]["backbone"].update(backbone="os:system"), "os:system"),
        (lambda facts: facts.update(classes=["fast", "fast"]), "two of its classes have the same name"),
        (lambda facts: facts.update(classes=["slow", "fast"]), "not in ascending order"),
        (lambda facts: facts.update(classes_dtype="<U1"), "do not fit their dtype '<U1'"),
        (lambda facts: facts.update(classes_dtype="<f8"), "ValueError"),
        (lambda facts: facts.update(classes=[0, 1]), "do not fit their dtype '<U4'"),
        (lambda facts: facts.update(classes_dtype="<M8[s]"), "needed is the dtype of numbers or texts"),
        (lambda facts: facts.update(temperature=10**400), "its temperature is 10000"),
        (lambda facts: facts.update(interrupted=1), "neither true nor false"),
        (lambda facts: facts.update(preparation=[]), "its preparation is not a text"),
        (lambda facts: facts.update(feature_names_in=["a"]), "1 names of features"),
        (lambda facts: facts.update(feature_names_in="a"), "feature_names_in are not texts"),
        (lambda facts: facts.update(settings=[]), "its settings are list"),
        (lambda facts: facts["settings"].update(windows=3), "windows"),
        (
            lambda facts: facts["training_data"].update(series=[1]),
            "training_data.series is no list of digests",
        ),
        (lambda facts: facts.update(trial=None), "scores of a validation report, but no report"),
        (lambda facts: facts["trial"].update(n_series=0), "its validation report"),
        (lambda facts: facts["trial"]["figures"]["uncalibrated"].update(brier=1e999), "cannot be read"),
        (lambda facts: facts["trial"]["reliability"]["uncalibrated"][0].pop("n"), "KeyError: 'n'"),
        (lambda facts: facts.update(calibration="temperature"), "temperature calibration has the arrays"),
        (lambda facts: facts.update(calibration_level=["window"]), "its calibration is of level"),
        (lambda facts: facts.update(weights_sha256="0" * 64), "two different hashes"),
    ],
)
def test_facts_that_no_fit_leaves_behind_are_refused_at_once(copy_of, change, message):
    with pytest.raises(ModelError, match=message):
        RAxSSClassifier.from_pretrained(reseal(copy_of(), change), device="cpu")


def test_settings_that_do_not_have_their_own_hash_are_refused(copy_of):
    folder = reseal(copy_of(), lambda facts: facts["settings"]["windows"].update(stride=4), keep_hash=True)
    assert "config_hash is" in refusal(folder)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "cannot be read"),
        (b"\n\n", "cannot be read"),
        (b"a,b\n1,2\n", "no column 'epoch'"),
        (b"epoch," * 5_000 + b"a\n", "5,001 columns, at most 1,000"),
        (b"epoch\n1\n1,2,3\n", "cannot be read"),
        (b"\xff\xfe\x00epoch\n1\n", "cannot be read"),
    ],
)
def test_a_history_that_is_none_is_refused(copy_of, content, message):
    folder = copy_of()
    (folder / HISTORY).write_bytes(content)
    assert message in refusal(reseal(folder))


# Links and special files ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", EVERY_FILE)
def test_links_and_special_files_are_not_opened(copy_of, tmp_path, name):
    folder = copy_of()
    outside = tmp_path / "outside"
    shutil.move(folder / name, outside)
    for target in (outside, tmp_path / "gone", Path("/dev/zero")):
        (folder / name).symlink_to(target)
        assert f"{name} in model 'model' is a link" in refusal(folder)
        (folder / name).unlink()
    shutil.copy(outside, folder / "inside")
    (folder / name).symlink_to("inside")  # one that stays inside leads nowhere today, but could be exchanged
    assert f"{name} in model 'model' is a link" in refusal(folder)
    (folder / name).unlink()
    os.mkfifo(folder / name)
    assert "it is a pipe, socket or device" in refusal(folder)
    (folder / name).unlink()
    (folder / name).mkdir()
    assert "it is a folder" in refusal(folder)


def test_the_folder_itself_may_be_a_link(copy_of, full_model, full_series, tmp_path):
    (tmp_path / "link").symlink_to(copy_of())
    loaded = RAxSSClassifier.from_pretrained(tmp_path / "link", device="cpu")
    np.testing.assert_array_equal(
        loaded.predict_proba(full_series[:2]), full_model.predict_proba(full_series[:2])
    )


# Folders of raxss 0.1 ---------------------------------------------------------------------------------------------


def test_a_folder_of_raxss_0_1_still_loads_with_a_warning_and_says_the_same(full_series, tmp_path):
    with pytest.warns(ModelWarning, match="'model_0_1' was written by raxss 0.1 and is not sealed"):
        model = RAxSSClassifier.from_pretrained(OLD, device="cpu")
    then = np.loadtxt(OLD.with_suffix(".csv"), delimiter=",")
    found = model.predict_proba(full_series)
    np.testing.assert_allclose(found, then, rtol=0, atol=1e-6)  # other processors round otherwise
    sealed = model.save_pretrained(tmp_path / "sealed")
    assert (sealed / WEIGHTS).read_bytes() == (OLD / WEIGHTS).read_bytes()  # reports have their hash
    again = RAxSSClassifier.from_pretrained(sealed, device="cpu")
    np.testing.assert_array_equal(again.predict_proba(full_series), found)


def test_settings_classes_and_weights_of_an_unsealed_folder_are_checked_as_far_as_can_be(copy_of):
    """Its settings have a hash, its weights another; classes can only be looked at."""
    text = (OLD / FACTS).read_text("utf-8")
    paths = [
        path for path in leaves(json.loads(text)) if path[0] in ("settings", "config_hash", "weights_sha256")
    ]
    paths += [("classes",), ("classes_dtype",), ("format",)]
    assert len(paths) > 50
    folder = copy_of(OLD)
    for path in paths:
        facts = json.loads(text)
        put(facts, path, other(at(facts, path)))
        (folder / FACTS).write_text(json.dumps(facts), "utf-8")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ModelWarning)  # that the folder is not sealed
            refusal(folder)


# Others who look into a folder ------------------------------------------------------------------------------------


def test_a_model_that_could_not_be_read_back_is_not_saved(full_model, tmp_path, monkeypatch):
    monkeypatch.setitem(MOST_BYTES, CARD, 100)
    with pytest.raises(ModelError, match=r"cannot be saved: its README\.md would have .* at most"):
        full_model.save_pretrained(tmp_path / "model")
    assert list(tmp_path.iterdir()) == []


def test_an_edited_folder_does_not_count_as_one_of_an_unfinished_run(copy_of):
    """With --resume such a folder is replaced; one edit must not make a finished model replaceable."""
    folder = copy_of()
    text = (folder / FACTS).read_text("utf-8")
    (folder / FACTS).write_text(text.replace('"interrupted": false', '"interrupted": true'), "utf-8")
    assert not was_interrupted(folder)
    assert was_interrupted(reseal(copy_of(), lambda facts: facts.update(interrupted=True)))
    assert was_interrupted(unseal(folder))


@pytest.mark.parametrize("name", [FACTS, WEIGHTS])
def test_an_archive_is_not_predicted_with_a_model_of_links_or_holes(copy_of, tmp_path, name):
    folder = copy_of()
    assert len(model_digest(folder)) == 64
    shutil.move(folder / name, tmp_path / "outside")
    (folder / name).symlink_to(tmp_path / "outside")
    with pytest.raises(ModelError, match=f"{name} in model 'model' is a link"):
        model_digest(folder)
    (folder / name).unlink()
    with open(folder / name, "wb") as file:
        file.truncate(10**11)
    with pytest.raises(ModelError, match=f"{name} in model 'model' has 100.0 GB"):
        model_digest(folder)
