"""Checkpoints: every bit is restored, and other or damaged files are refused."""

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from memory import PEAK
from raxss.errors import ModelError, OutputError
from raxss.method.training.checkpoints import FORMAT, Progress, load_checkpoint, save_checkpoint, state_of
from toys import assert_same_bits


def fresh(seed):
    torch.manual_seed(seed)
    # No bias before the norm: its gradient is rounding alone, which Adam makes as large as any other step.
    convolution = nn.Conv1d(2, 4, 3, bias=False)
    module = nn.Sequential(convolution, nn.BatchNorm1d(4), nn.Flatten(), nn.Linear(4 * 6, 1))
    return module, torch.optim.Adam(module.parameters(), lr=1e-2, weight_decay=1e-3)


def train(module, optimizer, n_steps, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(n_steps):
        windows = torch.randn(16, 2, 8, generator=generator)
        optimizer.zero_grad()
        (module(windows)[:, 0] - windows.mean(dim=(1, 2))).square().mean().backward()
        optimizer.step()


def progress_of(module):
    history = [{"epoch": 1, "train_loss": 0.1 + 0.2, "best": True}, {"epoch": 2, "train_loss": 1e-300}]
    scores = {"best_accuracy": 2 / 3, "best_loss": float("inf")}
    return Progress(epoch=2, step=6, best=state_of(module), best_epoch=1, history=history, **scores)


@pytest.fixture
def saved(tmp_path):
    module, optimizer = fresh(0)
    train(module, optimizer, 3, seed=1)
    best = progress_of(module)
    train(module, optimizer, 3, seed=2)
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, best, module, optimizer, fingerprint="abc")
    return path, module, optimizer, best


def test_module_optimizer_and_progress_come_back_bit_for_bit(saved):
    path, module, optimizer, progress = saved
    other, other_optimizer = fresh(99)
    found = load_checkpoint(path, other, other_optimizer, fingerprint="abc")
    assert_same_bits(state_of(other), state_of(module))
    assert_same_bits(found.best, progress.best)
    states = optimizer.state_dict()["state"], other_optimizer.state_dict()["state"]
    assert states[0].keys() == states[1].keys()
    for index in states[0]:
        assert_same_bits(states[0][index], states[1][index])
    for name in ("epoch", "step", "best_epoch", "best_accuracy", "best_loss", "history"):
        assert getattr(found, name) == getattr(progress, name)


@pytest.mark.parametrize("fused", [(False, False), (False, True), (True, True), (True, False)])
def test_training_goes_on_as_if_it_had_not_stopped_also_on_another_device(tmp_path, fused):
    """On a GPU Adam is one kernel and counts its steps there; its state is the same."""
    before, after = fused
    module, _ = fresh(0)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2, fused=before)
    train(module, optimizer, 3, seed=1)
    save_checkpoint(tmp_path / "c", Progress(), module, optimizer, fingerprint="")
    other, _ = fresh(1)
    other_optimizer = torch.optim.Adam(other.parameters(), lr=1e-2, fused=after)
    load_checkpoint(tmp_path / "c", other, other_optimizer, fingerprint="")
    train(module, optimizer, 4, seed=2)
    train(other, other_optimizer, 4, seed=2)
    for item, value in other.state_dict().items():
        expected = module.state_dict()[item]
        if before == after:
            assert torch.equal(value, expected), item
        else:
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_a_run_that_has_not_begun_can_be_saved(tmp_path):
    module, optimizer = fresh(0)
    save_checkpoint(tmp_path / "c", Progress(), module, optimizer, fingerprint="")
    found = load_checkpoint(tmp_path / "c", *fresh(1), fingerprint="")
    assert found == Progress()


def refused(path, match, fingerprint="abc"):
    """Loading must fail, by name, and must leave module and optimiser alone."""
    module, optimizer = fresh(5)
    before = state_of(module)
    with pytest.raises(ModelError, match=match):
        load_checkpoint(path, module, optimizer, fingerprint=fingerprint)
    assert_same_bits(state_of(module), before)
    assert not optimizer.state_dict()["state"]


def test_the_checkpoint_of_another_run_is_refused_with_both_fingerprints(saved):
    refused(saved[0], "'checkpoint.safetensors' belongs to another run.*'abc', this run has 'xyz'", "xyz")


def test_a_file_that_is_something_else_is_refused_by_name(tmp_path):
    (tmp_path / "notes.txt").write_text("not a checkpoint at all, but long enough to look like one")
    refused(tmp_path / "notes.txt", "'notes.txt' cannot be read")
    refused(tmp_path / "missing", "'missing' cannot be read")
    save_file({"weight": torch.zeros(3)}, tmp_path / "foreign")
    refused(tmp_path / "foreign", f"'foreign' is not .* None, needed is '{FORMAT}'")
    refused(tmp_path, f"'{tmp_path.name}' cannot be read")


def test_a_save_that_fails_leaves_the_last_checkpoint(saved):
    """A limit on file sizes stands for a full disk."""
    resource = pytest.importorskip("resource")
    path, module, optimizer, progress = saved
    before, limits = path.read_bytes(), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(OutputError, match=r"'checkpoint\.safetensors'"):
            save_checkpoint(path, progress, module, optimizer, fingerprint="abc")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.safetensors"]


# Hostile checkpoints ----------------------------------------------------------------------------------------------


def header_of(content):
    """The header of a safetensors file, and where its numbers begin."""
    start = 8 + int.from_bytes(content[:8], "little")
    return json.loads(content[8:start]), start


def with_header(content, change):
    """The content after its header was changed in place; its SHA-256 is as it was."""
    header, start = header_of(content)
    change(header)
    text = json.dumps(header, separators=(",", ":")).encode()
    return len(text).to_bytes(8, "little") + text + content[start:]


def with_its_digest(content):
    """The content with the SHA-256 that goes with it, as a forger would write it."""
    header, _ = header_of(content)
    kept = f'"sha256":"{header["__metadata__"]["sha256"]}"'.encode()
    blank = content.replace(kept, b'"sha256":"' + b"0" * 64 + b'"', 1)
    digest = hashlib.sha256(blank).hexdigest()
    return content.replace(kept, f'"sha256":"{digest}"'.encode(), 1)


def test_the_digest_of_a_checkpoint_can_be_computed_by_others(saved):
    content = saved[0].read_bytes()
    assert with_its_digest(content) == content


def test_a_changed_byte_anywhere_is_noticed(saved):
    """Every byte of the header, where names, dtypes, shapes and progress are, and some of the numbers."""
    path, rng = saved[0], np.random.default_rng(17)
    content = path.read_bytes()
    start = header_of(content)[1]
    module, optimizer = fresh(5)
    with path.open("r+b", buffering=0) as file:  # open once: truncating the file anew takes ten times as long
        for place in (*range(start), *rng.integers(start, len(content), size=200)):
            file.seek(place)
            file.write(bytes([content[place] ^ 1 << int(rng.integers(8))]))
            with pytest.raises(ModelError, match=r"'checkpoint\.safetensors'"):
                load_checkpoint(path, module, optimizer, fingerprint="abc")
            file.seek(place)
            file.write(content[place : place + 1])
    assert path.read_bytes() == content
    cut = [content[:n] for n in (0, 9, len(content) // 2, len(content) - 1)]
    for changed in (*cut, content[1:], content + b"\0", content + content, bytes(len(content))):
        path.write_bytes(changed)
        refused(path, r"'checkpoint\.safetensors'")


@pytest.mark.parametrize("forged", [False, True])
def test_every_tensor_of_another_dtype_or_shape_is_refused(saved, forged):
    """One letter, F32 to I32, resumed into another network before."""
    path = saved[0]
    content = path.read_bytes()
    header, _ = header_of(content)
    swaps = {"F32": "I32", "I64": "F64"}

    def other_dtype(entry):
        entry["dtype"] = swaps[entry["dtype"]]

    def other_shape(entry):
        entry["shape"] = [1, *entry["shape"]]

    names = [name for name in header if name != "__metadata__"]
    assert len(names) > 20
    for name in names:
        for change in (other_dtype, other_shape):
            changed = with_header(content, lambda header, name=name, change=change: change(header[name]))
            path.write_bytes(with_its_digest(changed) if forged else changed)
            refused(path, "does not fit this run" if forged else "is damaged")


def renamed(old, new):
    return lambda header: header.update({new: header.pop(old)})


def changed_progress(**changes):
    def change(header):
        facts = json.loads(header["__metadata__"]["progress"])
        header["__metadata__"]["progress"] = json.dumps(facts | changes)

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (changed_progress(epoch=-1), "counts of epochs and steps"),
        (changed_progress(epoch=1.5), "counts of epochs and steps"),
        (changed_progress(step="many"), "counts of epochs and steps"),
        (changed_progress(best_epoch=9), "counts of epochs and steps"),
        (changed_progress(best_epoch=-1), "that are there are not of it"),
        (changed_progress(best_loss=float("nan")), "its best_loss is not a number"),
        (changed_progress(best_accuracy=None), "its best_accuracy is not a number"),
        (changed_progress(history={}), "its history is not one row an epoch"),
        (changed_progress(history=[1]), "its history is not one row an epoch"),
        (changed_progress(other=1), "its progress needs the entries epoch, step"),
        (lambda header: header["__metadata__"].pop("progress"), "not valid JSON"),
        (lambda header: header["__metadata__"].update(progress="[" * 10_000), "not valid JSON"),
        (lambda header: header["__metadata__"].update(progress="[]"), "its progress needs the entries"),
        (lambda header: header["__metadata__"].update(format="raxss-checkpoint-1"), "'raxss-checkpoint-1'"),
        (renamed("module/0.weight", "module/x"), r"missing .* 0\.weight"),
        (renamed("best/0.weight", "best/x"), r"missing .* 0\.weight"),
        (renamed("optimizer/0/step", "x"), "neither of the network nor"),
        (renamed("optimizer/0/step", "optimizer/99/step"), "missing .* 0/step"),
        (renamed("optimizer/0/step", "optimizer/-1/step"), "missing .* 0/step"),
    ],
)
def test_a_forged_checkpoint_that_does_not_fit_the_run_is_refused(saved, change, message):
    path = saved[0]
    path.write_bytes(with_its_digest(with_header(path.read_bytes(), change)))
    refused(path, message)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize("part", ["module/0.weight", "best/3.bias", "optimizer/1/exp_avg"])
def test_numbers_that_are_not_finite_are_refused(saved, part, value):
    path = saved[0]
    content = bytearray(path.read_bytes())
    header, start = header_of(content)
    place = start + header[part]["data_offsets"][0]
    content[place : place + 4] = np.float32(value).tobytes()
    path.write_bytes(with_its_digest(bytes(content)))
    if part.startswith("optimizer") and np.isinf(value):
        # A square may overflow, which stops that weight alone.
        load_checkpoint(path, *fresh(5), fingerprint="abc")
    else:
        refused(path, f"{part!r} has numbers that are not finite")


def test_links_and_special_files_are_not_opened(saved, tmp_path):
    path = saved[0].rename(tmp_path / "outside")
    link = tmp_path / "link"
    link.symlink_to(path)
    refused(link, "'link' is a link")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "'pipe' cannot be read: it is a pipe")


BOMBS = """
import sys, time
from pathlib import Path
import torch
from raxss.method.training.checkpoints import load_checkpoint
from raxss.errors import ModelError, OutputError
module = torch.nn.Linear(100, 100)
optimizer = torch.optim.Adam(module.parameters())
for path in sorted(Path(sys.argv[1]).iterdir()):
    Path("/proc/self/clear_refs").write_text("5")
    before, began = peak(), time.process_time()
    try:
        load_checkpoint(path, module, optimizer, fingerprint="abc")
        message = "LOADED"
    except ModelError as error:
        message = str(error)
    print(path.name, (peak() - before) // 1024, f"{time.process_time() - began:.2f}", message, sep="|", flush=True)
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of memory")
def test_bombs_are_refused_before_memory_is_taken(tmp_path):
    entry = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    for n_tensors in (99_999, 200_000, 1_000_000):
        text = ("{" + ",".join(entry.format(number) for number in range(n_tensors)) + "}").encode()
        (tmp_path / f"{n_tensors} tensors").write_bytes(len(text).to_bytes(8, "little") + text)
    for name, size in (("sparse", 10**11), ("header", 10**7)):
        with open(tmp_path / name, "wb") as file:
            file.write((10**9).to_bytes(8, "little"))
            file.truncate(size)
    lists = b'{"a":[' + b"[]," * 4_000_000 + b"0]}"
    (tmp_path / "lists").write_bytes(len(lists).to_bytes(8, "little") + lists)
    script = [sys.executable, "-c", PEAK + BOMBS, tmp_path]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    rows = [line.split("|", maxsplit=3) for line in done.stdout.splitlines()]
    assert len(rows) == 6
    for name, megabytes, seconds, message in rows:
        assert f"'{name}'" in message, (name, message)
        assert int(megabytes) < 500, (name, megabytes)
        assert float(seconds) < 5, (name, seconds)
