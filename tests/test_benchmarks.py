"""A benchmark that measures the wrong thing is worse than none: contenders must agree, guesses must be marked."""

import doctest
import importlib
import importlib.util
import json
import platform
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from benchmarks import __main__ as command
from benchmarks import (
    common,
    network_cpu,
    peaks,
    prediction,
    report,
    retrieval,
    scaling,
    scaling_page,
    telling,
    training,
)
from benchmarks.contenders import (
    FAISS,
    FAISS_TOLD,
    OURS,
    STUMPY,
    TORCH,
    Answer,
    Case,
    Contender,
    by_raxss,
    by_torch,
    clocked,
    installed_peers,
)
from numpy.testing import assert_allclose

import naive
from raxss import Series
from raxss.data.prepare.preprocessing import Preparation
from raxss.method.backbones import build_backbone

ROOT = Path(__file__).parents[1]
TINY = Case(3_000, 256, 5)
NO_PEAKS = {"threads": 1, **{f"{kind}_gmacs": 100.0 for kind in (
    "float64", "float32", "float64_matmul", "float32_matmul")}}  # fmt: skip


@pytest.fixture
def no_peaks(monkeypatch):
    """The machine's peak is measured in a test of its own."""
    monkeypatch.setattr(retrieval, "peak_rates", lambda **_: NO_PEAKS)


# Retrieval ------------------------------------------------------------------------------------------------


def test_brute_force_is_what_the_plain_double_loop_says(rng):
    samples = rng.normal(size=90).cumsum() + 1e3
    case = Case(90, 16, 3, exclusion=6)
    exact = retrieval.brute_force(samples, case, np.arange(case.n_windows))
    expected = naive.similarity(samples, 16, 3, "pearson")
    apart = 3 * np.abs(np.subtract.outer(np.arange(case.n_windows), np.arange(case.n_windows)))
    assert_allclose(exact, np.where(apart <= 6, -np.inf, expected), atol=1e-12)


def test_those_who_are_installed_meet_in_one_run_and_the_tables_have_their_ratios():
    """All but stumpy, which compiles for a minute: it is in test_slow_benchmarks.py."""
    cases = [Case(2_000, 256, 1), Case(2_500, 256, 5)]
    with installed_peers() as found:
        peers = [item for item in found if item.name != STUMPY]
        results = retrieval.run(
            cases, goal=cases[1], memory_cases=[Case(30_000, 256, 5)], peers=peers, peak_seconds=0.05
        )
    json.dumps(results)  # everything in it can be written
    expected = {TORCH, FAISS, FAISS_TOLD} if importlib.util.find_spec("faiss") else {TORCH}
    for result in results["cases"]:
        assert set(result["peers"]) == expected
        assert result["ours"]["error"] <= 1e-6
        assert len(result["ours"]["runs"]) == 3
        for peer in result["peers"].values():
            assert peer["ratio"] == pytest.approx(peer["seconds"] / result["ours"]["seconds"])
            assert peer["difference"] <= 2e-5
    assert results["memory"][0]["added_mb"] > 0
    assert f"({results['cases'][1]['peers'][TORCH]['ratio']:.3g})" in retrieval.tables(results)


def test_a_peer_that_knows_one_stride_keeps_its_time_at_the_others_and_the_table_says_so(no_peaks):
    def at_stride_one(samples, case):
        return 7.0, by_raxss(samples, case)

    known = Contender(STUMPY, at_stride_one, tolerance=1e-6, only_stride=1)
    cases = [Case(1_000, 128, 1), Case(1_000, 128, 5)]
    results = retrieval.run(cases, goal=cases[1], memory_cases=[], peers=[known])
    at_one, at_five = results["cases"]
    assert at_one["peers"][STUMPY]["ratio"] == 7.0 / at_one["ours_with_exclusion"]["seconds"]
    assert at_five["peers"][STUMPY]["seconds"] == 7.0
    assert at_five["peers"][STUMPY]["at_stride"] == 1
    assert "7† (" in retrieval.tables(results)


def lying(samples, case):
    """Slightly better than the truth."""
    found = by_torch(samples, case)
    return Answer(found.similarity + 0.003, found.neighbors)


def mixing_up(samples, case):
    """The right similarities, of the wrong windows."""
    found = by_torch(samples, case)
    return Answer(found.similarity, np.roll(found.neighbors, 100, axis=0))


@pytest.mark.parametrize("search", [lying, mixing_up])
def test_a_contender_that_lies_is_caught_and_ours_as_well(no_peaks, monkeypatch, search):
    liar = Contender("the liar", clocked(search), tolerance=2e-5)
    settings = {"goal": TINY, "memory_cases": []}
    with pytest.raises(common.Disagreement, match=r"the liar is wrong on 3,000 samples, L 256, stride 5"):
        retrieval.run([TINY], peers=[liar], **settings)
    monkeypatch.setattr(retrieval, "OURS", Contender(OURS.name, clocked(search), tolerance=1e-6))
    with pytest.raises(common.Disagreement, match=r"raxss is wrong .* off by up to"):
        retrieval.run([TINY], peers=[], **settings)


@pytest.mark.parametrize("at_the_goal", [False, True])
def test_what_would_take_a_peer_too_long_is_extrapolated_unless_it_is_the_goal(no_peaks, at_the_goal):
    requested = []

    def slow(samples, case):
        requested.append(case.n_windows)
        return case.n_windows**2 * 1e-4, by_torch(samples, case)  # it says so; nobody waits

    small, large = Case(1_000, 256, 5), Case(2_002, 256, 5)
    goal = large if at_the_goal else Case(9_000, 256, 5)
    peers = [Contender(TORCH, slow, 2e-5)]
    results = retrieval.run([large, small], goal=goal, memory_cases=[], peers=peers, longest_aside_s=5.0)
    first, second = (result["peers"][TORCH] for result in results["cases"])
    assert small.n_windows in requested
    assert (large.n_windows in requested) == at_the_goal
    assert not first["extrapolated"]
    assert second["extrapolated"] != at_the_goal
    if not at_the_goal:
        assert second["seconds"] == pytest.approx(large.n_windows**2 * 1e-4)
        assert second["from_windows"] == small.n_windows
        assert f"~{second['seconds']:.3g} (" in retrieval.tables(results)


def test_the_peak_kernel_really_multiplies_and_adds():
    """x -> x/2 + 1 goes to 2 in every one of the chains, and the sum of their first lanes comes back."""
    for scalar, lanes in (("double", 2), ("float", 4)):
        engine, chains = peaks._compiled_chains(scalar, lanes)
        assert chains(2_000) == 2.0 * peaks.CHAINS
        assert chains(1) == sum((k + 2) / 2 + 1 for k in range(peaks.CHAINS))
        del engine


# Records --------------------------------------------------------------------------------------------------


def test_a_record_has_date_hardware_and_versions_but_names_neither_host_nor_folder():
    record = common.recorded("retrieval", "cpu", lambda: {"seconds": 1.0})
    text = json.dumps(record)
    for fact in ("date", "seed", "cores", "cpu", "load", "numpy", "torch", "numba", "raxss", "stumpy"):
        assert f'"{fact}' in text
    assert record["machine"]["cores"] == common.n_cores()
    assert str(ROOT) not in text
    assert str(Path.home()) not in text or str(Path.home()) == "/"
    assert len(platform.node()) < 3 or platform.node() not in text


def test_peak_added_sees_what_a_call_held_for_a_moment():
    def work():
        held = np.ones(200_000_000 // 8)  # too large for memory that was freed before and is held back
        return held.sum()

    added, result = common.peak_added(work)
    assert result == 200_000_000 // 8
    assert 190_000_000 <= added <= 300_000_000


@pytest.mark.parametrize("module", [common, report, scaling, scaling_page, telling])
def test_examples_in_the_benchmarks_hold(module):
    found = doctest.testmod(module, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.attempted > 0
    assert found.failed == 0


# Scaling --------------------------------------------------------------------------------------------------

COSTS = scaling.Costs(
    call_s=0.5, pair_s=1e-6, entry_s=1e-5, batch_s=1.0, network_s=1e-4, window_s=2e-3, evidence_bytes=100.0
)


def test_the_archive_s_cost_is_what_pencil_and_paper_say():
    """12 s at 1 kHz pooled 24/12 are 999 samples; windows of 99 at stride 100 are 10; 45 pairs, 10 lists of 10."""
    archive = scaling.Archive(n_patients=3, n_channels=2, hours=12 / 3600, window_length=99, stride=100)
    assert archive.windows_per_series == 10
    cost = scaling.archive_cost(COSTS, archive)
    assert cost["n_windows"] == 6 * 10
    assert cost["pairs"] == 6 * 45
    assert cost["search_hours"] == pytest.approx((6 * 0.5 + 6 * 45 * 1e-6 + 6 * 100 * 1e-5) / 3600)
    assert cost["window_hours"] == pytest.approx(6 * 10 * 2e-3 / 3600)
    assert cost["hours"] == pytest.approx(cost["search_hours"] + cost["window_hours"])
    assert cost["evidence_tb"] == pytest.approx(6_000e-12)
    for workers in (64, 0.5):
        shared = scaling.archive_cost(COSTS, archive, workers=workers)
        assert shared["hours"] == pytest.approx(cost["hours"] / workers)


def test_a_local_bank_of_four_compares_each_window_with_two_on_either_side():
    """Of 10 windows 9 pairs are one apart and 8 are two apart."""
    assert scaling.pairs_within(10, 4) == 17
    assert scaling.pairs_within(10, None) == 45
    assert scaling.pairs_within(10, 10) == 45, "a series with no more windows than the bank is searched whole"


def test_the_constants_behind_measurements_are_found_again():
    """Times made from known constants, and not a negative one where noise would ask for it."""

    def seconds(n):
        return 0.01 + 2e-9 * n * (n - 1) / 2 + 3e-8 * scaling.entries(n)

    made = {
        "retrieval": [
            {"n_windows": n, "pairs": n * (n - 1) / 2, "seconds": seconds(n)}
            for n in (100, 1_000, 10_000, 100_000)
        ],
        "network": [{"batch": n, "seconds": 0.002 + 1e-4 * n} for n in (64, 512, 4096)],
        "prediction": [
            {"channels": n, "n_windows": 1000 * n, "pairs": 499_500 * n, "evidence_bytes": 50_000 * n,
             "seconds": n * (seconds(1000) + 1000 * 3e-4)}
            for n in (1, 4)
        ],
    }  # fmt: skip
    costs = scaling.costs_of(made)
    assert_allclose(
        [costs.call_s, costs.pair_s, costs.entry_s, costs.batch_s, costs.network_s, costs.window_s],
        [0.01, 2e-9, 3e-8, 0.002, 1e-4, 3e-4],
        rtol=1e-6,
    )
    assert costs.evidence_bytes == 50.0
    assert min(scaling.fit([[1, 1], [1, 2]], [1.0, 3.0])) >= 0


def test_a_gpu_s_pair_costs_what_its_kernel_took():
    """1 ms for the 45 pairs of ten windows; then 5 ms a call is what is left of the times."""
    kernel = {"n_windows": 10, "ours_ms": 1.0}
    pair_s = 1e-3 / 45
    rows = [{"n_windows": 10, "pairs": n, "seconds": 5e-3 + n * pair_s} for n in (45, 90, 900)]
    network = [{"batch": n, "seconds": 1.0} for n in (1, 2)]
    prediction = [{"channels": 1, "n_windows": 10, "pairs": 45, "evidence_bytes": 1, "seconds": 2.0}]
    costs = scaling.costs_of({"retrieval": rows, "network": network, "prediction": prediction}, kernel)
    assert costs.pair_s == pytest.approx(pair_s)
    assert costs.call_s + scaling.entries(10) * costs.entry_s == pytest.approx(5e-3)


def test_lists_are_changed_as_often_as_in_a_simulation(rng):
    """Similarities met in no order: how often does one enter the best ten so far?"""
    changed = 0
    for similarities in rng.random((20, 2_000)):
        best = []
        for similarity in similarities:
            if len(best) < 10 or similarity > best[0]:
                changed += 1
                best = sorted([*best, similarity])[-10:]
    assert changed / 20 == pytest.approx(scaling.entries(2_000) / 2_000, rel=0.05)
    assert scaling.entries(2_000, 100) < scaling.entries(2_000)
    assert scaling.entries(50, 100) == scaling.entries(50)


def test_the_price_of_retrieval_comes_apart_into_its_terms():
    prices = [2e-3, 1e-7, 1e-10, 3e-10, 2e-13, 3e-8]
    cases = [
        {"n_windows": n, "pairs": n * (n - 1) // 2, "stride": stride, "window_length": length,
         "n_samples": n * stride + length}
        for n in (300, 4_000, 50_000) for stride in (1, 5, 64) for length in (256, 1024)
    ]  # fmt: skip
    for case in cases:
        pairs = case["pairs"]
        amounts = [1, case["n_samples"], 2 * case["stride"] * pairs, pairs, case["window_length"] * pairs]
        amounts.append(scaling.entries(case["n_windows"]))
        case["ours"] = {"seconds": float(np.dot(prices, amounts))}
    terms = scaling.terms_of_retrieval(cases)
    assert_allclose(list(terms.values()), prices, rtol=1e-6)
    assert scaling.modelled_seconds(terms, cases[0]) == pytest.approx(cases[0]["ours"]["seconds"])
    assert scaling.terms_of_retrieval(cases[:5]) == {}, "five times cannot tell six prices apart"


@pytest.fixture(scope="module")
def tiny_scaling():
    return scaling.run(
        "cpu", lengths=(1_200, 2_400), batches=(4, 8), channels=(1, 2), channel_samples=1_100, n_repeats=1
    )


def test_all_three_growths_are_measured(tiny_scaling):
    assert [item["n_windows"] for item in tiny_scaling["retrieval"]] == [36, 276]
    assert [item["batch"] for item in tiny_scaling["network"]] == [4, 8]
    assert [item["n_windows"] for item in tiny_scaling["prediction"]] == [16, 32]
    assert all(item["evidence_bytes"] > 0 for item in tiny_scaling["prediction"])
    seconds = [
        item["seconds"] for part in ("retrieval", "network", "prediction") for item in tiny_scaling[part]
    ]
    assert min(seconds) > 0


# Report ---------------------------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path):
    """The committed files, with other ratios, a seed that took too long and no prediction on a GPU."""
    place = shutil.copytree(common.RESULTS, tmp_path / "results")
    (place / "h200" / "prediction.json").unlink()
    seed, found = (
        json.loads((place / name).read_text()) for name in ("h200/seed.json", "cpu2/retrieval.json")
    )
    seed["results"]["seconds"] = 150.0
    (place / "h200" / "seed.json").write_text(json.dumps(seed))
    for peer, stride, ratio in ((TORCH, 5, 17.25), (FAISS_TOLD, 5, 18.0), (STUMPY, 1, 30.0)):
        report._goal_case(found["results"], stride)["peers"][peer]["ratio"] = ratio
    (place / "cpu2" / "retrieval.json").write_text(json.dumps(found))
    return place


def test_the_report_has_every_goal_and_says_what_was_reached(results, tmp_path):
    text = report.write(results)
    assert (tmp_path / "RESULTS.md").read_text() == text
    lines = text.splitlines()
    rows = {goal.key: next(line for line in lines if f"| {goal.text} " in line) for goal in report.GOALS}
    assert "17.2" in rows["retrieval-torch"]
    assert "| reached " in rows["retrieval-torch"]
    assert "told the right one: 18 times" in rows["retrieval-faiss"]
    assert "the same question to both: 30 times" in rows["retrieval-stumpy"]
    assert "**missed**" in rows["seed"]
    assert "at most 120 s" in rows["seed"]
    assert "not measured" in rows["prediction-gpu"]


def test_a_missed_goal_is_followed_by_its_reason(results):
    everything = report.read_all(results)
    text = report.report(everything, {"seed": "The disk was slow that day."})
    assert "retrieval included.** The disk was slow that day." in text
    assert "no reason is written down" in report.report(everything, {})


def test_every_note_belongs_to_a_goal():
    assert set(report.read_notes(report.NOTES)) <= {goal.key for goal in report.GOALS}
    assert len({goal.key for goal in report.GOALS}) == len(report.GOALS)


def test_the_page_has_one_core_one_gpu_and_64_from_the_model(results, tmp_path):
    text = scaling_page.write(results, tmp_path / "docs")
    parts = report.read_all(results)["h200"]
    costs = scaling.costs_of(*(parts[name]["results"] for name in ("scaling", "retrieval-gpu")))
    expected = scaling.archive_cost(costs, scaling.Archive(hours=24.0), workers=64)
    row = next(
        line for line in text.splitlines() if "| 24 h" in line and "exact" in line and "| 64 H200" in line
    )
    assert f"| {scaling_page.duration(expected['hours'])} " in row
    assert "| 1 CPU core " in text
    assert "| 1 H200 " in text
    assert (tmp_path / "docs" / "scaling.png").stat().st_size > 10_000


def test_without_results_the_page_says_how_to_get_them(tmp_path):
    assert "python -m benchmarks scaling" in scaling_page.write(tmp_path / "none", tmp_path)
    assert "not measured" in report.write(tmp_path / "none", tmp_path / "RESULTS.md")


@pytest.mark.parametrize("machine", [item.name for item in sorted(common.RESULTS.glob("*")) if item.is_dir()])
def test_committed_results_give_a_figure_for_every_goal_they_are_about(machine):
    everything = report.read_all(common.RESULTS)
    requested = [
        goal for goal in report.GOALS if goal.machine == machine and goal.part in everything[machine]
    ]
    assert [goal.key for goal in requested if report.goal_figure(goal, everything) is None] == []


@pytest.mark.skipif(not common.RESULTS.is_dir(), reason="no results are committed")
def test_the_committed_pages_are_what_the_committed_results_say():
    everything = report.read_all(common.RESULTS)
    assert (ROOT / "benchmarks" / "RESULTS.md").read_text() == report.report(
        everything, report.read_notes(report.NOTES)
    )
    assert (ROOT / "docs" / "scaling.md").read_text() == scaling_page.page(everything)


# The other parts, small ------------------------------------------------------------------------------------


def figures_of(part, results):
    """What the goals about a part find in its results, and what the report says of them."""
    found = {goal.key: goal.figure(results) for goal in report.GOALS if goal.part == part}
    assert telling.part_tables(part, json.loads(json.dumps(results))).count("|") > 10
    return found


def test_training_a_seed_and_a_recording_have_the_figures_of_their_goals():
    rates = training.step_rate("cpu", batch=16, n_series=4, window_length=64, n_rounds=1)
    assert figures_of("training", rates)["training-cpu"] == rates["windows_per_second"]["raxss"] > 0
    seed = training.one_seed(
        "cpu", n_epochs=1, n_train=4, n_validation=2, window_length=256, stride=400, n_neighbors=2
    )
    assert figures_of("seed", seed)["seed"] == seed["seconds"] > 0
    recording = prediction.recording("cpu", n_channels=2, seconds=30, window_length=256, stride=64)
    assert figures_of("prediction", recording)["prediction-cpu"] == recording["seconds"] > 0
    assert {"read", "retrieval", "network", "evidence_and_write"} <= set(recording["parts_by_themselves"])
    assert recording["n_windows"] == 2 * ((2499 - 256) // 64 + 1)
    assert f"{recording['n_windows']:,} windows" in report._prediction_beside(recording)


def test_the_network_beside_its_plain_layers_has_a_table_with_ratios():
    results = network_cpu.run(batch=4, plain_batch=2, n_rounds=1)
    text = telling.part_tables("network", json.loads(json.dumps(results)))
    assert f"| {common.number(results['ratio']['evaluation'])} " in text


def test_what_a_gpu_measured_is_reported_with_ratios_and_floors():
    results = report.read_all(common.RESULTS)["h200"]["retrieval-gpu"]["results"]
    ours, floors = results["ours_ms"], results["floors"]
    found = figures_of("retrieval-gpu", results)
    assert found == {"retrieval-gpu": ours, "retrieval-gpu-error": results["error"]}
    rows = telling.part_tables("retrieval-gpu", results).splitlines()
    for text, ms in (
        ("tf32", results["torch_tf32_ms"]),
        ("(float64 matrix units)", floors["float64_matrix_ms"]),
    ):
        row = next(line for line in rows if text in line)
        assert row.split("|")[-2].strip() == common.number(ms / ours)
    floor = common.number(floors["float64_matrix_ms"])
    assert f"operations in float64 matrix units {floor} ms" in report._gpu_beside(results)


def test_the_operations_of_the_network_are_those_of_its_products():
    network = build_backbone("patchtst", n_variates=1, window_length=64, n_outputs=1, options={"n_layers": 1})
    n_tokens = 8
    linear = 16 * 32 + 4 * 32 * 32 + 2 * 32 * 128
    attention = 2 * n_tokens * 32
    assert prediction.network_flops(network) == 2 * (n_tokens * (linear + attention) + n_tokens * 32)


def test_pooling_leaves_as_many_samples_as_preparation_does():
    for seconds in (0.024, 1.0, 7.777):
        raw = Series(np.zeros(round(1000 * seconds)), rate=1000.0)
        assert prediction.pooled_samples(seconds) == Preparation(pooling=(24, 12)).apply(raw).n_samples


@pytest.mark.parametrize("bank", ["local", "series"])
def test_a_long_channel_runs_from_the_command_line(tmp_path, bank):
    arguments = ["long", "--device", "cpu", "--hours", "0.05", "--bank", bank, "--bank-size", "100"]
    prediction.main([*arguments, "--json", str(tmp_path / "long.json")])
    found = json.loads((tmp_path / "long.json").read_text())["results"]
    assert found["n_windows"] == (14_999 - 1024) // 5 + 1
    assert (found["bank"], found["bank_windows"]) == (bank, 100 if bank == "local" else found["n_windows"])
    assert 0 < found["before_gb"] < found["peak_gb"] < 2


def test_only_a_whole_day_counts_for_the_memory_of_a_day():
    results = prediction.long_channel("cpu", 0.02, "local", window_length=256, stride=64)
    goal = next(goal for goal in report.GOALS if goal.key == "long")
    for hours, expected in ((0.02, None), (24, results["peak_gb"])):
        record = {"cpu2": {"long": {"results": {**results, "hours": hours}}}}
        assert report.goal_figure(goal, record) == expected
    assert "bank local" in report._long_beside(results)


# The command ----------------------------------------------------------------------------------------------


def test_all_parts_for_two_cores_fit_into_half_an_hour_and_a_gpu_adds_its_own():
    without, with_gpu = command.plan(has_gpu=False), command.plan(has_gpu=True)
    assert 0 < sum(minutes for *_, minutes in without) <= 30
    assert {device for _, device, _ in without} == {"cpu"}
    assert ("retrieval-gpu", "cuda") in {(name, device) for name, device, _ in with_gpu}


def test_a_part_is_recorded_where_json_says(tmp_path, monkeypatch, tiny_scaling, capsys):
    monkeypatch.setattr(scaling, "run", lambda device: {**tiny_scaling, "asked": device})
    assert command.main(["scaling", "--device", "cpu", "--json", str(tmp_path / "here.json")]) == 0
    record = json.loads((tmp_path / "here.json").read_text())
    assert record["part"] == "scaling"
    assert record["results"]["asked"] == "cpu"
    assert "windows_per_s" in capsys.readouterr().out


def test_all_runs_each_part_in_its_own_process_and_goes_on_when_one_fails(tmp_path, monkeypatch, capsys):
    """The processes are played: each leaves a file, and one says that it failed."""
    requested = []

    def played(arguments):
        part, place = arguments[3], Path(arguments[arguments.index("--json") + 1])
        requested.append((part, place.relative_to(tmp_path).as_posix()))
        return subprocess.CompletedProcess(arguments, returncode=int(part == "training"))

    monkeypatch.setattr(command.subprocess, "run", played)
    monkeypatch.setattr(command, "_has_gpu", lambda: False)
    place = str(tmp_path / "results")
    assert command.main(["all", "--results", place, "--docs", str(tmp_path), "--without", "long"]) == 1
    machine = common.machine_name("cpu")
    parts = [name for name, *_ in command.plan(has_gpu=False) if name != "long"]
    assert requested == [(name, f"results/{machine}/{name}.json") for name in parts]
    record = json.loads((tmp_path / "results" / machine / "all.json").read_text())
    assert record["results"]["failed"] == ["training on cpu"]
    assert "FAILED: training on cpu" in capsys.readouterr().err
    assert (tmp_path / "RESULTS.md").exists()
    assert (tmp_path / "scaling.md").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["retrieval-gpu"], "retrieval-gpu needs a CUDA device"),
        (["retrieval", "--device", "cuda"], "retrieval cannot run on a CUDA device"),
    ],
)
def test_a_part_on_the_wrong_device_is_refused(monkeypatch, arguments, message):
    monkeypatch.setattr(command, "_has_gpu", lambda: False)
    with pytest.raises(SystemExit, match=message):
        command.main(arguments)


def test_an_unknown_part_is_refused_with_those_there_are(capsys):
    with pytest.raises(SystemExit):
        command.main(["retrival"])
    assert "'retrival' (choose from" in capsys.readouterr().err
