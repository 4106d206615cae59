"""The command line, run as a user runs it."""

import functools
import importlib
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from typer.main import get_command
from typer.testing import CliRunner

from raxss import RAxSSClassifier
from raxss.cli import app, main
from raxss.data.files import read_manifest
from raxss.errors import RAxSSError
from raxss.explain import Report
from raxss.method.augmentation import AugmentationConfig
from toys import hears_ctrl_c, waves

CPU = ["--device", "cpu"]
WINDOWS = ["--window-length", "32", "--stride", "8"]
FAST = [*WINDOWS, "--max-epochs", "2", *CPU]
NETWORK = "[backbone]\nbackbone = 'convnet'\n"  # trained by epochs, with a checkpoint after each


def raxss(*arguments, code=0):
    """Run in this process, through `main`, and return what was printed and the error text."""
    runner = CliRunner()
    result = runner.invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, RAxSSError):
        assert code == 1, result.exception
        return str(result.exception)
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def raxss_process(*arguments, **options):
    command = [sys.executable, "-m", "raxss", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, **options)


TABLES = {".raxss", "evidence.json", "windows.parquet", "neighbors.parquet"}


def names(folder):
    return {file.name for file in folder.iterdir()}


@pytest.fixture
def manifest(tmp_path, rng):
    """Twelve recordings on disk, as .npz, .npy and .csv, and the manifest that lists them."""
    lines = ["path,label,group,rate"]
    for index, wave in enumerate(waves(rng, n_series=12)):
        name = f"rec{index}.{('npz', 'npy', 'csv')[index % 3]}"
        if name.endswith("npz"):
            np.savez(tmp_path / name, samples=wave.samples, rate=10.0)
        elif name.endswith("npy"):
            np.save(tmp_path / name, wave.samples)
        else:
            np.savetxt(tmp_path / name, wave.samples.T, delimiter=",")
        lines.append(f"{name},{wave.label},{wave.group},10")
    path = tmp_path / "manifest.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture
def model(manifest, tmp_path):
    raxss("fit", manifest, "--out", tmp_path / "model", *FAST)
    return tmp_path / "model"


def every_command(command, path=()):
    """The words of every command and group of commands of the app."""
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, (*path, name))


@pytest.mark.parametrize("path", list(every_command(get_command(app))), ids=" ".join)
def test_every_command_and_option_has_help(path):
    command = functools.reduce(lambda group, name: group.commands[name], path, get_command(app))
    assert command.help
    assert [parameter.name for parameter in command.params if not getattr(parameter, "help", None)] == []
    assert "--help" in raxss(*path, "--help")


def test_the_walk_finds_commands_inside_of_groups():
    found = list(every_command(get_command(app)))
    assert {("fit",), ("audit-split",), ("datasets", "download")} <= set(found)
    assert len(found) > 18


def test_help_does_not_wait_for_torch():
    script = "import sys, raxss.cli; print({'torch', 'sklearn', 'pandas', 'numba'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        assert raxss_process("--help").returncode == 0
        seconds.append(time.perf_counter() - began)
    assert min(seconds) < 1.5  # the goal is 0.5 s


def test_version():
    assert raxss("--version").startswith("raxss 0.")


def test_fit_predict_explain_from_a_manifest(manifest, model, tmp_path):
    out = raxss("predict", model, manifest, "--out", tmp_path / "p.csv", *CPU)
    assert "12 predictions" in out
    table = pd.read_csv(tmp_path / "p.csv")
    scores = ["probability_fast", "probability_slow", "seconds", "label", "seen_in_training"]
    bounds = ["low_fast", "high_fast", "low_slow", "high_slow", "interval"]
    sets = ["in_set_fast", "in_set_slow", "abstains"]  # by the twelve series, each scored without its fold
    assert list(table.columns) == ["name", "predicted", *scores, *bounds, *sets, "warnings"]
    np.testing.assert_allclose(table["probability_fast"] + table["probability_slow"], 1, atol=1e-12)
    assert table["name"].tolist() == [f"rec{index}" for index in range(12)]

    files = [tmp_path / "rec0.npz", tmp_path / "rec3.npz"]
    raxss("predict", model, *files, "--out", tmp_path / "p.parquet", *CPU)
    again = pd.read_parquet(tmp_path / "p.parquet")
    np.testing.assert_allclose(again["probability_fast"], table["probability_fast"].iloc[[0, 3]], atol=1e-12)

    raxss("explain", model, tmp_path / "rec0.npz", "--out", tmp_path / "why", *CPU)
    (folder,) = (item for item in (tmp_path / "why").iterdir() if item.is_dir())
    assert names(folder) == {*TABLES, "overlay.png", "contributions.png", "report.html"}
    evidence = json.loads((folder / "evidence.json").read_text())
    assert evidence["series_probability"][0] == pytest.approx(table["probability_fast"][0], abs=1e-12)


def test_options_of_calibration_reach_the_model_and_its_intervals_the_table(manifest, tmp_path):
    options = ["--calibration", "venn-abers", "--calibration-level", "series", "--conformal-alpha", 0.4]
    options += ["--decision-threshold", "argmax", "--class-weight", "balanced"]
    raxss("fit", manifest, "--out", tmp_path / "model", *FAST, *options)
    found = json.loads((tmp_path / "model" / "config.json").read_text())["settings"]
    expected = {"calibration": "venn-abers", "calibration_level": "series", "conformal_alpha": 0.4}
    assert found["calibration"] == expected | {"decision_threshold": "argmax"}
    assert found["training"]["class_weight"] == "balanced"
    raxss("predict", tmp_path / "model", manifest, "--out", tmp_path / "p.csv", *CPU)
    table = pd.read_csv(tmp_path / "p.csv")
    assert (table["interval"] == "Venn-Abers").all()
    for name in ("fast", "slow"):
        assert (table[f"low_{name}"] <= table[f"probability_{name}"]).all()
        assert (table[f"probability_{name}"] <= table[f"high_{name}"]).all()
    np.testing.assert_allclose(table["uncalibrated_fast"] + table["uncalibrated_slow"], 1, atol=1e-9)
    tables = ["explain", tmp_path / "model", manifest, "--out", tmp_path / "why", "--one-table", *CPU]
    assert "summary.parquet first" in raxss(*tables)
    assert "'why' exists already" in raxss(*tables, code=1)
    assert "--one-table" in raxss(*tables, "--format", "json", code=2)
    summary = pd.read_parquet(tmp_path / "why" / "summary.parquet")
    for column in ("probability_fast", "uncalibrated_fast", "low_fast", "high_fast"):
        np.testing.assert_allclose(summary[column], table[column], atol=1e-9)
    windows = pd.read_parquet(tmp_path / "why" / "windows.parquet")
    sums = windows.groupby("series", sort=False)["contribution_fast"].sum()
    np.testing.assert_allclose(sums, table["uncalibrated_fast"], atol=1e-9)


def test_only_the_requested_formats_are_written(model, tmp_path):
    where = ["--out", tmp_path / "why", *CPU, "--overwrite"]
    raxss("explain", model, tmp_path / "rec0.npz", *where, "--format", "parquet")
    assert names(tmp_path / "why" / "rec0") == TABLES
    raxss("explain", model, tmp_path / "rec0.npz", *where, "--format", "json", "--format", "figures")
    assert names(tmp_path / "why" / "rec0") == {".raxss", "evidence.json", "overlay.png", "contributions.png"}
    raxss("explain", model, tmp_path / "rec0.npz", *where, "--format", "pdf", code=2)


def test_a_name_that_ends_in_html_is_the_report_of_one_recording(manifest, model, tmp_path):
    raxss("predict", model, manifest, "--out", tmp_path / "p.csv", *CPU)
    where = ["--out", tmp_path / "r.html", *CPU]
    out = raxss("explain", model, tmp_path / "rec3.npz", *where, "--positive", "slow")
    assert "open it in any browser" in out
    contents = Report.read(tmp_path / "r.html").contents
    assert contents["recording"] == "rec3"
    assert contents["classes"][contents["focus"]] == "slow"
    expected = pd.read_csv(tmp_path / "p.csv").iloc[3][["probability_fast", "probability_slow"]]
    np.testing.assert_allclose(contents["channels"][0]["probability"], expected.astype(float), atol=1e-12)
    facts = json.loads((model / "config.json").read_text())
    assert contents["model"]["weights_sha256"] == facts["weights_sha256"]
    assert "'r.html' exists already" in raxss("explain", model, tmp_path / "rec3.npz", *where, code=1)

    where[1] = tmp_path / "s.html"
    several = raxss("explain", model, tmp_path / "rec0.npz", tmp_path / "rec3.npz", *where, code=1)
    assert "'s.html' takes the report of one recording, but more were given: 'rec0', 'rec3'" in several
    wrong = raxss("explain", model, tmp_path / "rec0.npz", *where, "--positive", "slwo", code=1)
    assert "'slwo' is not a class of this model; did you mean 'slow'?" in wrong
    assert "--format" in raxss("explain", model, tmp_path / "rec0.npz", *where, "--format", "json", code=2)
    assert not (tmp_path / "s.html").exists()


def test_control_characters_of_file_names_do_not_reach_the_terminal(manifest, model, tmp_path):
    name = "\x1b]0;owned\x07\x1b[31m=cmd"
    (tmp_path / f"{name}.npz").write_bytes((tmp_path / "rec0.npz").read_bytes())
    for command, suffix in (("explain", "html"), ("predict", "csv")):
        out = tmp_path / f"{name}.{suffix}"
        output = raxss(command, model, tmp_path / f"{name}.npz", "--out", out, *CPU)
        assert out.exists()
        assert "owned" in output
        assert not {"\x1b", "\x07"} & set(output)


def test_a_bounded_bank_is_used_by_explain_and_predict_and_named_in_the_evidence(model, tmp_path):
    np.save(tmp_path / "long.npy", np.random.default_rng(3).normal(size=2000))
    scores = []
    for name, options in {"series": [], "local": ["--bank", "local", "--bank-size", 20]}.items():
        raxss("explain", model, tmp_path / "long.npy", "--out", tmp_path / name, "--format", "json", *options)
        evidence = json.loads((tmp_path / name / "long" / "evidence.json").read_text())
        assert evidence["settings"]["bank"] == name
        raxss("predict", model, tmp_path / "long.npy", "--out", tmp_path / f"{name}.csv", *options)
        scores.append(pd.read_csv(tmp_path / f"{name}.csv")["probability_fast"].item())
        assert scores[-1] == pytest.approx(evidence["series_probability"][0], abs=1e-12)
    assert scores[0] != scores[1]


def test_an_unknown_bank_size_or_ending_is_refused_before_anything_is_read(model, tmp_path):
    absent, where = tmp_path / "no.npy", ["--out", tmp_path / "p.csv", *CPU]
    wrong = raxss("predict", model, absent, *where, "--bank", "locl", code=1)
    assert "did you mean 'local'" in wrong
    wrong = raxss("explain", model, absent, *where, "--bank-size", 0, code=1)
    assert "bank_size must be" in wrong
    wrong = raxss("predict", model, absent, "--out", tmp_path / "p.xlsx", code=1)
    assert "'p.xlsx' must end in .csv or .parquet" in wrong


def test_fit_without_a_preset_is_the_estimator_with_its_defaults(manifest, tmp_path):
    raxss("fit", manifest, "--out", tmp_path / "m", *FAST)
    own = {"window_length": 32, "stride": 8, "max_epochs": 2}
    model = RAxSSClassifier(**own, random_state=69421, device="cpu").fit(read_manifest(manifest))
    read = RAxSSClassifier.from_pretrained(tmp_path / "m")
    assert read.config_ == model.config_
    assert read.config_.augmentation == AugmentationConfig()  # nothing is trained by gradients
    for name, value in model.backbone_.state_dict().items():
        torch.testing.assert_close(read.backbone_.state_dict()[name], value, rtol=0, atol=0)


def test_fit_takes_a_settings_file_on_top_of_a_preset(manifest, tmp_path):
    (tmp_path / "mine.toml").write_text("[retrieval]\nmeasure = 'cosine'\n")
    raxss(
        "fit", manifest, "--out", tmp_path / "m", "--preset", "sss", "--config", tmp_path / "mine.toml", *FAST
    )
    config = RAxSSClassifier.from_pretrained(tmp_path / "m").config
    assert (config.retrieval.measure, config.aggregation.weighting) == ("cosine", "uniform")
    assert (config.windows.window_length, config.training.max_epochs) == (32, 2)
    assert not (tmp_path / "m.checkpoint").exists()


def test_the_demo_writes_metrics_model_and_evidence(tmp_path):
    out = raxss("demo", "--out", tmp_path / "demo", "--max-epochs", "1", *CPU)
    metrics = json.loads((tmp_path / "demo" / "metrics.json").read_text())
    for figures in (metrics, metrics["uniform"]):
        for name in ("auc", "f1", "accuracy"):
            assert 0 <= figures[name]["low"] <= figures[name]["value"] <= figures[name]["high"] <= 1
    assert (metrics["n_train"], metrics["n_test"], metrics["seed"]) == (320, 80, 69421)
    assert metrics["seconds"] > 0
    assert RAxSSClassifier.from_pretrained(tmp_path / "demo" / "model").classes_.tolist() == ["AF", "normal"]
    figures = list((tmp_path / "demo" / "evidence").glob("*/overlay.png"))
    assert 2 <= len(figures) <= 3
    assert "uniform weights" in out
    assert "metrics.json" in out


# Bad input -------------------------------------------------------------------------------------------------


def test_an_error_is_one_message_and_exit_code_1_and_does_not_move_the_cursor(model, tmp_path):
    ended = raxss_process("predict", model, tmp_path / "\x1b[31mred.npy", "--out", tmp_path / "p.csv")
    assert ended.returncode == 1
    assert ended.stderr.startswith("raxss: ")
    assert "Traceback" not in ended.stderr
    assert "\x1b[31m" not in ended.stderr
    assert not (tmp_path / "p.csv").exists()


def test_a_file_name_cannot_become_a_formula(model, tmp_path, rng):
    np.save(tmp_path / "=1+1.npy", rng.normal(size=100))
    raxss("predict", model, tmp_path / "=1+1.npy", "--out", tmp_path / "p.csv")
    assert pd.read_csv(tmp_path / "p.csv")["name"][0] == "'=1+1"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--preset", "papr"], "did you mean 'paper'"),
        (
            ["--signal", "eeg"],
            "'recommended' is one method for all signals. Choose 'tuned' (--preset tuned), or",
        ),
        (["--preset", "tuned", "--signal", "egg"], "did you mean 'eeg'"),
        (["--config", "mine.toml"], "'retrieval.mesure'; did you mean 'measure'"),
        (["--config", "no.toml"], "no.toml"),
    ],
)
def test_an_unknown_preset_and_setting_offer_the_nearest(tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text("[retrieval]\nmesure = 'cosine'\n")
    assert message in raxss("fit", "sample", *options, "--out", "m", code=1)
    assert "'sample'" in raxss("fit", "sampel", "--out", "m", code=1)


def test_a_failed_run_leaves_an_existing_model_as_it_was(manifest, model, tmp_path):
    before = {file.name: file.read_bytes() for file in model.iterdir()}
    assert "exists already" in raxss("fit", manifest, "--out", model, *FAST, code=1)
    samples = np.full((1, 100), np.nan)
    np.savez(tmp_path / "rec0.npz", samples=samples, rate=10.0)
    error = raxss("fit", manifest, "--out", model, "--overwrite", *FAST, code=1)
    assert "'rec0' has 100 of 100 samples" in error
    assert {file.name: file.read_bytes() for file in model.iterdir()} == before


def test_an_output_that_cannot_be_written_is_refused_before_the_work(manifest, model, tmp_path):
    (tmp_path / "file").write_text("in the way")
    for arguments in (
        ("fit", manifest, "--out", tmp_path / "file" / "m"),
        ("predict", model, manifest, "--out", tmp_path / "file" / "p.csv"),
        ("explain", model, manifest, "--out", tmp_path / "file" / "why"),
        ("demo", "--out", tmp_path / "file" / "demo"),
    ):
        began = time.perf_counter()
        assert "cannot write" in raxss(*arguments, code=1)
        assert time.perf_counter() - began < 5
    assert (tmp_path / "file").read_text() == "in the way"


def interrupt_after(line, arguments):
    """Run until a line begins like this, send Ctrl-C, and return what was printed after that."""
    command = [sys.executable, "-m", "raxss", *map(str, arguments)]
    pipes = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True}
    process = subprocess.Popen(command, preexec_fn=hears_ctrl_c, **pipes)
    with process:
        for printed in process.stderr:
            if printed.startswith(line):
                process.send_signal(signal.SIGINT)
                break
        message = process.stderr.read()
    assert process.returncode == 130
    return message


@pytest.fixture
def network(tmp_path):
    """Options of `raxss fit` with which a network is trained."""
    (tmp_path / "network.toml").write_text(NETWORK)
    return ["--config", tmp_path / "network.toml"]


def test_resume_goes_on_after_ctrl_c(manifest, network, tmp_path):
    """A run stopped by a signal keeps its best model, and resuming ends where the undisturbed run does."""
    arguments = ["fit", manifest, *WINDOWS, "--max-epochs", "40", *CPU, *network]
    raxss(*arguments, "--out", tmp_path / "whole")
    last = interrupt_after("epoch 3/", [*arguments, "--out", tmp_path / "m"]).splitlines()[-1]
    assert re.fullmatch(
        r"Stopped\. The best model so far \(epoch \d+\) is kept in .*/m; the checkpoint m\.checkpoint is kept "
        r"\(epoch 3\), and the same command with --resume goes on from there\.",
        last,
    ), last
    assert RAxSSClassifier.from_pretrained(tmp_path / "m").interrupted_
    raxss(*arguments, "--out", tmp_path / "m", "--resume")
    resumed, whole = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("m", "whole"))
    assert resumed == whole


def raises_from_call(number, real):
    """A function that is interrupted the n-th time it is called, and after that."""
    calls = iter(range(1, 100))

    def interrupted(*arguments, **options):
        if next(calls) >= number:
            raise KeyboardInterrupt
        return real(*arguments, **options)

    return interrupted


def unlinks(real):
    """`Path.unlink`, interrupted for the checkpoint alone."""

    def unlink(path, *given, **options):
        if path.name.endswith(".checkpoint"):
            raise KeyboardInterrupt
        return real(path, *given, **options)

    return unlink


#: When Ctrl-C comes (once or twice), what is interrupted then, and what there is afterwards: the new model, and how
#: many epochs the checkpoint has.
MOMENTS = {
    "reading": ([("raxss.cli.fit.read_data", 1)], None, None),
    "in the first epoch": ([("raxss.method.training.loop.train_epoch", 1)], None, None),
    "in the second epoch": ([("raxss.method.training.loop.train_epoch", 2)], "best", 1),
    "and again while fitting what follows": (
        [("raxss.method.training.loop.train_epoch", 2), ("raxss.estimator.fit.feature_scaling", 1)], None, 1,
    ),
    "and again before saving": (
        [("raxss.method.training.loop.train_epoch", 3), ("raxss.estimator.classifier.save_model", 1)], None, 2,
    ),
    "and again while saving": (
        [("raxss.method.training.loop.train_epoch", 2), ("raxss.estimator.persistence._card", 1)], None, 1,
    ),
    "after training, while saving": ([("raxss.estimator.persistence._card", 1)], None, 2),
    "when the model is there": ([("pathlib.Path.unlink", 1)], "whole", 2),
}  # fmt: skip


@pytest.mark.parametrize("older", [False, True])
@pytest.mark.parametrize("moment", MOMENTS)
def test_after_ctrl_c_the_last_line_says_what_is_kept(
    manifest, network, tmp_path, monkeypatch, moment, older
):
    interrupted, model, epoch = MOMENTS[moment]
    arguments = ["fit", manifest, *FAST, *network, "--out", tmp_path / "m"]
    if older:
        raxss(*arguments)
        model = None if model == "best" else model  # which does not take the place of an older one
    before = {item.name: item.read_bytes() for item in tmp_path.glob("m/*")}
    with monkeypatch.context() as patch:
        for name, number in interrupted:
            place, attribute = name.rsplit(".", 1)
            home = Path if place == "pathlib.Path" else importlib.import_module(place)
            real = getattr(home, attribute)
            patch.setattr(home, attribute, unlinks(real) if home is Path else raises_from_call(number, real))
        result = CliRunner().invoke(app, [str(item) for item in [*arguments, "--overwrite"]])
    assert result.exit_code == 130
    last = result.stderr.splitlines()[-1]
    after = {item.name: item.read_bytes() for item in tmp_path.glob("m/*")}
    if model is None:
        assert after == before
        assert ("The older model was left as it is" in last) == older
        assert ("No model was written" in last) == (not older)
    elif model == "best":
        assert json.loads(after["config.json"])["interrupted"]
        assert f"The best model so far (epoch 1) is kept in {tmp_path / 'm'}" in last
    else:
        assert not json.loads(after["config.json"])["interrupted"]
        assert after != before
        assert last == f"Stopped. Training was over: the model in {tmp_path / 'm'} is complete."
    assert (tmp_path / "m.checkpoint").exists() == (epoch is not None)
    if model != "whole":
        resumes = f"the checkpoint m.checkpoint is kept (epoch {epoch}), and the same command with --resume"
        assert (resumes in last) == (epoch is not None)
        assert ("there is no checkpoint, so the same command begins anew" in last) == (epoch is None)
    assert not list(tmp_path.glob(".*"))
    if epoch is not None:
        raxss(*arguments, "--resume", "--overwrite")
        assert not json.loads((tmp_path / "m" / "config.json").read_text())["interrupted"]


def test_ctrl_c_while_window_classifiers_are_fitted_leaves_nothing(manifest, tmp_path, monkeypatch):
    real = importlib.import_module("raxss.estimator.at_once").fit_at_once
    monkeypatch.setattr("raxss.estimator.at_once.fit_at_once", raises_from_call(1, real))
    result = CliRunner().invoke(app, ["fit", str(manifest), *FAST, "--out", str(tmp_path / "m")])
    assert result.exit_code == 130
    assert "No model was written; there is no checkpoint" in result.stderr.splitlines()[-1]
    assert not (tmp_path / "m").exists()


def test_overwriting_never_deletes_a_folder_of_someone_else(model, tmp_path):
    thesis = tmp_path / "precious" / "thesis.txt"
    thesis.parent.mkdir()
    thesis.write_text("years of work")
    for command in (("explain", model, tmp_path / "rec0.npz"), ("demo",), ("fit", "synthetic")):
        error = raxss(*command, "--out", thesis.parent, "--overwrite", code=1)
        assert "the folder 'precious' was not made by raxss" in error
    assert thesis.read_text() == "years of work"
    raxss("explain", model, tmp_path / "rec0.npz", "--out", tmp_path / "why")
    raxss("explain", model, tmp_path / "rec3.npz", "--out", tmp_path / "why", "--overwrite")
    assert (tmp_path / "why" / "rec3").exists()
    assert not (tmp_path / "why" / "rec0").exists()


def test_warnings_are_messages_without_code(model, tmp_path):
    np.savez(tmp_path / "flat.npz", samples=np.ones((1, 100)), rate=10.0)
    ended = raxss_process(
        "predict", model, tmp_path / "flat.npz", "--out", tmp_path / "p.csv", "--device", "cpu"
    )
    assert ended.returncode == 0
    assert "raxss: warning: series 'flat' is constant over all its 100 samples" in ended.stderr
    assert ".py" not in ended.stderr


def test_an_unexpected_error_is_one_line_unless_debugging(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["raxss", "fit", "synthetic", "--out", "nowhere"])
    monkeypatch.setattr("raxss.cli.app", lambda: 1 / 0)
    with pytest.raises(SystemExit, match="unexpected ZeroDivisionError: division by zero"):
        main()
    monkeypatch.setenv("RAXSS_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main()
