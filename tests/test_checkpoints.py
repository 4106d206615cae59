"""A checkpoint brings back every bit, and nothing else is taken for one."""

import subprocess
import sys
import textwrap

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from raxss.checkpoints import FORMAT, Progress, load_checkpoint, save_checkpoint, state_of
from raxss.errors import ModelError


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


def assert_same_bits(first, second):
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert value.dtype == second[name].dtype
        assert torch.equal(value, second[name]), name


def progress_of(module):
    history = [{"epoch": 1, "train_loss": 0.1 + 0.2, "best": True}, {"epoch": 2, "train_loss": 1e-300}]
    return Progress(
        epoch=2,
        step=6,
        best=state_of(module),
        best_epoch=1,
        best_accuracy=2 / 3,
        best_loss=float("inf"),
        history=history,
    )


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


def test_training_goes_on_as_if_it_had_not_stopped(saved):
    path, module, optimizer, _ = saved
    other, other_optimizer = fresh(99)
    load_checkpoint(path, other, other_optimizer, fingerprint="abc")
    train(module, optimizer, 5, seed=3)
    train(other, other_optimizer, 5, seed=3)
    assert_same_bits(state_of(other), state_of(module))


@pytest.mark.parametrize("fused", [(False, True), (True, True), (True, False)])
def test_the_optimizer_of_another_device_takes_over(tmp_path, fused):
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
    for one, value in other.state_dict().items():
        expected = module.state_dict()[one]
        if before == after:
            assert torch.equal(value, expected), one
        else:
            torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-6)


def test_a_run_that_has_not_begun_can_be_saved(tmp_path):
    module, optimizer = fresh(0)
    save_checkpoint(tmp_path / "c", Progress(), module, optimizer, fingerprint="")
    found = load_checkpoint(tmp_path / "c", *fresh(1), fingerprint="")
    assert found == Progress()


def test_the_state_of_a_module_is_a_copy():
    module, _ = fresh(0)
    before = state_of(module)
    with torch.no_grad():
        module[0].weight.add_(1.0)
    assert not torch.equal(before["0.weight"], module[0].weight)


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


@pytest.mark.parametrize("share", [0.0, 0.001, 0.5, 0.999])
def test_a_truncated_checkpoint_is_refused_by_name(saved, share):
    content = saved[0].read_bytes()
    saved[0].write_bytes(content[: int(share * len(content))])
    refused(saved[0], "'checkpoint.safetensors' cannot be read")


def test_a_file_that_is_something_else_is_refused_by_name(tmp_path):
    (tmp_path / "notes.txt").write_text("not a checkpoint at all, but long enough to look like one")
    refused(tmp_path / "notes.txt", "'notes.txt' cannot be read")
    refused(tmp_path / "missing", "'missing' cannot be read")
    refused(tmp_path, f"'{tmp_path.name}' cannot be read")


def test_the_weights_of_another_program_are_refused_by_name(tmp_path):
    save_file({"weight": torch.zeros(3)}, tmp_path / "foreign.safetensors")
    refused(tmp_path / "foreign.safetensors", f"'foreign.safetensors' is not .* None, needed is '{FORMAT}'")


def test_a_save_that_fails_leaves_the_last_checkpoint(saved):
    """A limit on file sizes stands for a full disk; the process is another one because the limit stays."""
    path = saved[0]
    before = path.read_bytes()
    script = """
        import pathlib, resource, signal, sys
        import torch
        from raxss.checkpoints import Progress, save_checkpoint
        from raxss.errors import OutputError
        module = torch.nn.Linear(100, 100)
        optimizer = torch.optim.Adam(module.parameters())
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
        try:
            save_checkpoint(pathlib.Path(sys.argv[1]), Progress(), module, optimizer, fingerprint="abc")
        except OutputError as error:
            assert "'checkpoint.safetensors'" in str(error), error
        else:
            sys.exit("nothing was raised")
    """
    pytest.importorskip("resource")
    subprocess.run([sys.executable, "-c", textwrap.dedent(script), path], check=True)
    assert path.read_bytes() == before
    assert [file.name for file in path.parent.iterdir()] == ["checkpoint.safetensors"]


def test_a_flipped_bit_in_a_tensor_is_noticed(tmp_path):
    module = torch.nn.Linear(3, 2)
    optimizer = torch.optim.Adam(module.parameters())
    path = tmp_path / "run.checkpoint"
    save_checkpoint(path, Progress(), module, optimizer, fingerprint="f")
    load_checkpoint(path, module, optimizer, fingerprint="f")
    content = bytearray(path.read_bytes())
    content[-3] ^= 4
    path.write_bytes(content)
    with pytest.raises(ModelError, match=r"'run\.checkpoint' is damaged"):
        load_checkpoint(path, module, optimizer, fingerprint="f")
