"""Progress: a bar for a terminal, a line an epoch elsewhere."""

import pytest

from raxss._core.progress import ProgressBar, progress_bar, share_bar


def test_nothing_is_drawn_where_stderr_is_no_terminal(capsys):
    with progress_bar(unit="series") as bar:
        assert list(bar.track([1, 2, 3], description="predicting")) == [1, 2, 3]
    with share_bar("predicting", 1000, unit="windows") as on_progress:
        assert on_progress is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize("quiet", [False, True])
def test_a_terminal_gets_a_bar_unless_it_should_be_quiet(monkeypatch, capsys, quiet):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with progress_bar(unit="series", quiet=quiet) as bar:
        list(bar.track([1, 2], description="predicting"))
    out, err = capsys.readouterr()
    assert out == ""
    assert ("predicting" in err and "2/2" in err) is not quiet


def test_training_prints_a_line_an_epoch_where_there_is_no_terminal(capsys):
    bar = ProgressBar()
    bar.on_train_begin(3, 10)
    bar.on_step(0, 1)
    bar.on_epoch_end({"epoch": 1, "train_loss": 0.5, "validation_accuracy": 0.25})
    bar.on_epoch_end({"epoch": 2, "train_loss": 0.25})
    bar.on_train_end()
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "epoch 1/3 loss 0.500, validation accuracy 0.250\nepoch 2/3 loss 0.250\n"


def test_a_share_is_drawn_as_so_many_of_all_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with share_bar("predicting", 1000, unit="windows") as on_progress:
        on_progress(0.25)
        on_progress(0.9996)
    assert "1000/1000" in capsys.readouterr().err
