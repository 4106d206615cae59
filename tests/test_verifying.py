"""A report that was changed is found out; an honest one holds."""

import base64
import copy
import hashlib
import json
import re

import numpy as np
import pytest
from typer.testing import CliRunner

from raxss import RAxSSClassifier, Series
from raxss.cli import app
from raxss.errors import DataError, ModelError, RAxSSError
from raxss.explain import Report
from raxss.explain.export.report.page import _shell, contents_of, page_of
from raxss.explain.export.report.verifying import PACKED, verify_report
from toys import SMALL, waves


@pytest.fixture(scope="module")
def series():
    """Two channels of a recording with a gap, which has windows without probability."""
    rng = np.random.default_rng(4)
    samples = np.cumsum(rng.normal(size=(2, 600)), axis=1)
    samples[1, 300:310] = np.nan
    origins = [{"recording": "night", "channel": f"C{k}"} for k in range(2)]
    return [
        Series(sample, 10.0, name=f"night:{origin['channel']}", origin=origin, gaps_marked=True)
        for sample, origin in zip(samples, origins, strict=True)
    ]


@pytest.fixture(scope="module")
def model():
    return RAxSSClassifier(**SMALL).fit(waves(np.random.default_rng(1)))


@pytest.fixture(scope="module")
def report(model, series):
    return model.report(series)


@pytest.fixture(scope="module")
def page(report):
    return page_of(report.contents)


def places(value, path=()):
    """Every value that is no list and no table."""
    if isinstance(value, dict | list):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(item, (*path, key))
    else:
        yield path, value


def changed(contents, path, value):
    """A copy of what leads to the place, for the rest is the same."""
    if not path:
        return value
    other = copy.copy(contents)
    other[path[0]] = changed(contents[path[0]], path[1:], value)
    return other


def is_packed(path):
    return path[0] == "channels" and path[2:] in PACKED


def edit_array(contents, rng):
    found = [(path, value) for path, value in places(contents) if is_packed(path) and value]
    path, value = found[rng.integers(len(found))]
    dtype, nothing = PACKED[path[2:]]
    array = np.frombuffer(base64.b64decode(value), dtype).astype(int)
    place = rng.integers(len(array))
    array[place] += 2 if array[place] < 100 else -2
    if rng.random() < 0.3:  # a gap where there is none, or none where there is one
        array[place] = nothing if array[place] != nothing else 7
    return changed(contents, path, base64.b64encode(array.astype(dtype).tobytes()).decode())


def edit_structure(contents, rng):
    contents = copy.deepcopy(contents)
    channel = contents["channels"][int(rng.integers(len(contents["channels"])))]
    rows = channel["windows"]
    kind = rng.integers(6)
    if kind == 0:
        contents["channels"] += contents["channels"]
    elif kind == 1:  # a window takes the place of another
        for column in rows["contribution"]:
            column[0], column[-1] = column[-1], column[0]
    elif kind == 2:
        channel["neighbors"][0], channel["neighbors"][-1] = channel["neighbors"][-1], channel["neighbors"][0]
    elif kind == 3:
        del contents["channels"][0]
    elif kind == 4:
        channel["probability"].reverse()
    else:
        del channel[list(channel)[int(rng.integers(len(channel)))]]
    return contents


def in_page(page, rng):
    """A place in markup, style or script."""
    before, after = map(len, _shell())
    place = int(rng.integers(before + after))
    return place if place < before else len(page) - after + place - before


def in_data(page, rng):
    """A place among numbers, names and packed signals."""
    before, after = map(len, _shell())
    return int(rng.integers(before, len(page) - after))


def another_byte(page, place, rng):
    others = [item for item in b"0123456789AZaz+/ ,}" if item != page[place]]
    return page[:place] + bytes([rng.choice(others)]) + page[place + 1 :]


def edited(page, rng, kind):
    """A page of which somebody who does not know the hash changed a byte; or who does, more than that."""
    if kind < 2:
        return another_byte(page, (in_page, in_data)[kind](page, rng), rng)
    edit = (edit_array, edit_structure)[kind - 2]
    return page_of(edit(contents_of(page)[0], rng))


def test_every_single_value_counts(model, series):
    """Not by luck: each number, text and array is changed in turn."""
    report = model.report(series[1])
    every = list(places(json.loads(json.dumps(report.contents))))
    assert verify_report(report, report).n_values == len(every)
    for path, value in every:
        if isinstance(value, str):
            other = value + "x"
        elif isinstance(value, bool) or value is None:
            other = 0
        else:
            other = value + (1 if isinstance(value, int) else 2e-6 * max(1.0, abs(value)))
        wrong = changed(report.contents, path, other)
        (sentence,) = verify_report(Report(wrong), report).differences
        assert str(path[-1]) in sentence


def test_texts_that_mean_the_same_but_were_written_by_another_are_refused(report, page, tmp_path):
    head, block = re.search(
        rb'(<script type="application/json"[^>]*>)(.*?)</script>', page, re.DOTALL
    ).groups()
    for other in (
        block.replace(b'{"format"', b'{ "format"', 1),
        block.replace(b'"focus":', b'"focus":7,"focus":', 1),
        block.replace(b'"n_top":12', b'"n_top":NaN', 1),
        block.replace(b'"n_top":12', b'"n_top":12.0e0', 1),
    ):
        assert other != block
        digests = (hashlib.sha256(item).hexdigest().encode() for item in (block, other))
        (tmp_path / "r.html").write_bytes(page.replace(head + block, head.replace(*digests) + other))
        with pytest.raises(DataError, match=r"data of 'r\.html' cannot be read"):
            Report.read(tmp_path / "r.html")


def test_rounding_is_no_tampering_but_more_is(report):
    place = ("channels", 0, "probability", 1)
    value = report.contents["channels"][0]["probability"][1]
    for off, holds in ((4e-7, True), (3e-6, False)):
        assert verify_report(Report(changed(report.contents, place, value + off)), report).holds == holds
    place = ("channels", 0, "envelope", "low")
    array = np.frombuffer(base64.b64decode(report.contents["channels"][0]["envelope"]["low"]), np.int16)
    for off, holds in ((1, True), (2, False)):
        moved = array.copy()
        moved[5] += off
        wrong = changed(report.contents, place, base64.b64encode(moved.tobytes()).decode())
        found = verify_report(Report(wrong), report)
        assert found.holds == holds
    assert found.differences[0].startswith(
        "channel 'C0', envelope.low: 1 of 600 values are more than a step off"
    )


def test_the_last_digit_in_a_file_counts_even_where_no_computation_gives_it(page, tmp_path):
    """One step of a packed sample, the sixteenth digit of a number: within what verify_report allows."""
    for wanted in (rb'"samples":"A?..', rb'"probability":\[0\.\d{12}'):
        place = re.search(wanted, page).end()
        path = tmp_path / "r.html"
        path.write_bytes(another_byte(page, place, np.random.default_rng(0)))
        with pytest.raises(DataError, match=r"data of 'r\.html' do not have the SHA-256 that it states"):
            Report.read(path)


def test_what_other_threads_compute_is_no_tampering_where_a_probability_is_next_to_nothing(report):
    """Differences as two threads gave them on real recordings; a share of the weight is another matter."""
    contents = json.loads(json.dumps(report.contents))
    rows = contents["channels"][0]["windows"]
    rows["posterior"][0][1], rows["contribution"][0][1] = 2.0238565579616445e-24, 3.932222097175404e-27
    neighbors = contents["channels"][0]["neighbors"][1]
    neighbors["weight_change"][0] = 1.991211882879096e-11
    contents["channels"][0]["probability"] = [4.917240788445966e-28, 1.0]

    def holds(*path_and_value):
        *path, value = path_and_value
        return verify_report(Report(changed(contents, ("channels", 0, *path), value)), Report(contents)).holds

    assert holds("windows", "posterior", 0, 1, 2.0238488375762925e-24)
    assert holds("windows", "contribution", 0, 1, 3.932207097163916e-27)
    assert holds("neighbors", 1, "weight_change", 0, 2.0117736469760228e-11)
    assert holds("probability", 0, 4.9172112165171205e-28)
    largest = max(rows["weight"])
    assert not holds("windows", "weight", 1, rows["weight"][1] + 2e-6 * largest)
    assert not holds("neighbors", 1, "weight_change", 0, 2e-6 * largest)
    assert not holds("windows", "contribution", 0, 1, 2e-6 * max(map(max, rows["contribution"])))
    assert not holds("windows", "posterior", 0, 1, 2e-6)
    assert not holds("probability", 1, 1)  # a whole number is another text
    contents["channels"][0]["steps"]["step"] = [2e-9]  # a signal in volts
    assert not holds("steps", "step", 0, 2.1e-9)


# On the command line --------------------------------------------------------------------------------------


def raxss(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if isinstance(result.exception, RAxSSError):
        return result.exception
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.output


def verified(folder, report="r.html", model="model", recording="day.npz", options=(), code=0):
    """What ``raxss verify`` prints, or its error."""
    files = folder / report, folder / model, folder / recording
    return raxss("verify", *files, *options, "--device", "cpu", code=code)


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    """A model, two recordings, and reports of the first."""
    folder = tmp_path_factory.mktemp("verify")
    rng = np.random.default_rng(9)
    model.save_pretrained(folder / "model")
    RAxSSClassifier(**SMALL | {"random_state": 5}).fit(waves(rng)).save_pretrained(folder / "other")
    for name in ("day", "night"):
        np.savez(folder / f"{name}.npz", samples=np.cumsum(rng.normal(size=500)), rate=10.0)
    raxss("explain", folder / "model", folder / "day.npz", "--out", folder / "r.html", "--device", "cpu")
    return folder


def test_an_honest_report_holds_and_again_after_the_model_was_saved_once_more(folder):
    printed = verified(folder)
    assert re.fullmatch(r"r\.html says what model says of day: [\d,]+ values are the same\n", printed)
    RAxSSClassifier.from_pretrained(folder / "model").save_pretrained(folder / "copy")
    (folder / "all.csv").write_text("path,rate\nnight.npz,10\nday.npz,10\n")  # the one that is meant is found
    verified(folder, model="copy", recording="all.csv")


def test_the_options_of_explain_are_those_of_verify(folder, model):
    report = Report.read(folder / "r.html")
    other = str(model.classes_[1 - report.contents["focus"]])
    options = ["--positive", other, "--bank", "local", "--bank-size", 20]
    files = [folder / "model", folder / "day.npz", "--out", folder / "o.html", "--device", "cpu"]
    raxss("explain", *files, *options)
    verified(folder, "o.html", options=options)
    assert "focus: the report says" in verified(folder, "o.html", options=options[2:], code=1)
    error = verified(folder, "o.html")
    assert isinstance(error, ModelError)
    assert "made with settings" in str(error)
    assert "--bank as it was given then" in str(error)


@pytest.mark.parametrize("seed", range(100))
def test_each_of_a_hundred_edited_files_is_found_out(folder, tmp_path, seed):
    page, rng = (folder / "r.html").read_bytes(), np.random.default_rng(seed)
    content = edited(page, rng, seed % 4)
    assert content != page
    (tmp_path / "r.html").write_bytes(content)
    printed = verified(folder, tmp_path / "r.html", code=1)
    assert isinstance(printed, DataError | ModelError) or "does not say what model says of day" in printed


def test_a_changed_report_is_named_with_exit_code_1(folder):
    contents = Report.read(folder / "r.html").contents
    contents["channels"][0]["probability"] = [0.01, 0.99]
    contents["channels"][0]["warnings"] = ["\x1b[31mall is well"]
    Report(contents).save(folder / "t.html", overwrite=True)
    printed = verified(folder, "t.html", code=1)
    assert "channel 'day', probability[0]: the report says 0.01, computed anew it is 0." in printed
    assert "channel 'day', warnings" in printed
    assert "t.html does not say what model says of day" in printed
    assert "\x1b" not in printed


def test_another_model_recording_or_file_is_refused_as_that(folder):
    error = verified(folder, model="other")
    assert isinstance(error, ModelError)
    assert re.search(r"'r\.html' says .* made with weights '[0-9a-f]{64}', but model 'other'", str(error))
    error = verified(folder, recording="night.npz")
    assert isinstance(error, DataError)
    assert "is of recording 'day'; none of what was given is called so" in str(error)
    assert "'night'" in str(error)
    error = verified(folder, "day.npz")
    assert "'day.npz' is not a report as this version of raxss writes it" in str(error)


def test_a_recording_of_the_same_name_with_another_signal_is_found_out(folder, tmp_path):
    (tmp_path / "day.npz").write_bytes((folder / "night.npz").read_bytes())
    printed = verified(folder, recording=tmp_path / "day.npz", code=1)
    assert "channel 'day', probability[0]: the report says" in printed
    assert int(re.search(r"and ([\d,]+) more", printed)[1].replace(",", "")) > 20
