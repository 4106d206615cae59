"""Many series at once: exactly what each gives alone, on any threads, and tables that cover every pair once."""

import numpy as np
import pytest
import torch

from raxss.errors import ConfigError, DataError
from raxss.recordings.series import Series
from raxss.retrieval import on_cuda, on_torch
from raxss.retrieval.front import ask, retrieve
from raxss.retrieval.many import retrieve_many
from raxss.retrieval.on_cuda import Shape, lay_out_on, plan, why_not

CPU = torch.device("cpu")
LENGTHS = (1, 7, 32, 33, 40, 200, 777, 3000)


@pytest.fixture
def series(rng):
    some = [rng.normal(size=n).cumsum() for n in LENGTHS]
    some[5][50:60] = np.nan
    some[6][100:400] = 3.0
    return some


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"measure": "cosine", "exclusion": 10},
        {"spread": 8, "n_neighbors": 3},
        {"bank": "local", "bank_size": 20},
        {"stride": 40},
    ],
)
@pytest.mark.parametrize("n_threads", [1, 3])
def test_many_series_have_the_lists_that_each_has_alone(series, settings, n_threads):
    settings = {"window_length": 32, "stride": 2, **settings}
    before = torch.get_num_threads()
    torch.set_num_threads(n_threads)
    try:
        together = retrieve_many(series, **settings)
    finally:
        torch.set_num_threads(before)
    for one, found in zip(series, together, strict=True):
        alone = retrieve(one, **settings)
        np.testing.assert_array_equal(found.neighbors, alone.neighbors)
        np.testing.assert_array_equal(found.similarity, alone.similarity)
        np.testing.assert_array_equal(found.support, alone.support)
        np.testing.assert_array_equal(found.flags, alone.flags)
        assert (found.bank, found.bank_size, found.space) == (alone.bank, alone.bank_size, alone.space)


def test_the_torch_path_takes_many_series_too(series):
    on_cpu = retrieve_many(series, window_length=32, stride=2)
    on_torch_cpu = retrieve_many(series, window_length=32, stride=2, device="cpu:0")
    for one, other in zip(on_cpu, on_torch_cpu, strict=True):
        np.testing.assert_array_equal(one.neighbors, other.neighbors)


def test_each_series_has_its_own_features(series, rng):
    some = [one for one in series if len(one) > 200]
    features = [rng.normal(size=(len(one) // 2 - 15, 4)) for one in some]
    together = retrieve_many(some, window_length=32, stride=2, features=features)
    for one, vectors, found in zip(some, features, together, strict=True):
        alone = retrieve(one, window_length=32, stride=2, features=vectors)
        np.testing.assert_array_equal(found.neighbors, alone.neighbors)
        assert found.space == "features"


def test_features_of_too_few_series_are_refused(series):
    with pytest.raises(DataError, match="features of 1 series were given for 8 series"):
        retrieve_many(series, window_length=32, features=[np.zeros((3, 2))])


def test_a_bank_that_one_of_the_series_does_not_have_is_refused(rng):
    some = [Series(rng.normal(size=60), name="long"), Series(rng.normal(size=50), name="short")]
    with pytest.raises(ConfigError, match="bank names window 25, but the series has windows 0 to 18"):
        retrieve_many(some, window_length=32, bank=[25])


def test_no_series_give_no_lists():
    assert retrieve_many([], window_length=32) == []


def test_progress_rises_to_one(series):
    shares = []
    retrieve_many(series, window_length=32, on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert min(shares) >= 0.0


def searches(series, **settings):
    defaults = {"measure": "pearson", "n_neighbors": 4, "exclusion": 0, "spread": 0, "bank": "series"}
    return [
        ask(one, window_length=32, stride=2, features=None, **defaults | settings).search for one in series
    ]


@pytest.mark.parametrize("most_products", [10**9, 20_000])
@pytest.mark.parametrize("settings", [{}, {"bank": "local", "bank_size": 100}])
def test_the_tables_of_the_launches_cover_every_row_and_every_column_in_reach(
    series, settings, most_products
):
    some = searches([*series[4:], series[7][::-1] * np.where(np.arange(3000) < 900, 1e4, 1.0)], **settings)
    layout = lay_out_on(CPU, some)
    n_rows, seen = 64, set()
    owner = {int(origin): search for origin, search in zip(layout.origins, some, strict=True)}
    for tables in plan(layout, n_rows, most_products):
        assert tables.n_products <= most_products or len(tables.blocks) == 1
        taken = np.zeros(tables.n_products, int)
        for target, begin, end in tables.groups.permute(0, 2, 1).reshape(-1, 3).tolist():
            taken[target + begin : target + end] += 1
        assert taken.max() == 1  # no two anchors write to the same place
        for origin, row, n, segment, n_segments, centre in tables.blocks.tolist():
            search = owner[origin]
            assert (origin, row) not in seen
            seen.add((origin, row))
            assert 0 <= centre < n_segments
            assert int(tables.row_masks[(origin + row) // 8]) & 1
            mine = tables.segments[segment : segment + n_segments].tolist()
            columns = [c + k for c, n_strips, _ in mine for k in range(n_strips * layout.shape.width)]
            assert len(columns) == len(set(columns))
            needed = range(max(row - search.farthest, 0), min(row + n + search.farthest, search.n_windows))
            assert set(needed) <= set(columns)
            # What the block starts from was computed: its first row, and the edge of every segment.
            first = int(tables.row_anchors[origin + row])
            assert taken[first + origin + needed[0]] == taken[first + origin + needed[-1]] == 1
            for column, _, edge in mine:
                assert taken[edge + origin + row - (column == 0)] == 1
    assert seen == {
        (int(origin), row)
        for origin, search in zip(layout.origins, some, strict=True)
        for row in range(0, search.n_windows, n_rows)
    }


def test_factors_on_the_device_are_the_steps_of_the_recurrence(rng):
    (search,) = searches([rng.normal(size=(2, 300)).cumsum(axis=1)])
    layout = lay_out_on(CPU, [search])
    windows = search.windows - search.means[:, :, np.newaxis]
    products = np.einsum("vil,vjl->ij", windows, windows)
    rows = layout.rows.flatten(1, 3).transpose(1, 2).flatten(0, 1)  # (n_places, n_terms)
    columns = layout.columns.flatten(1, 3).permute(0, 3, 2, 1).flatten(0, 2)
    steps = (rows @ columns.T).numpy()[: search.n_windows, : search.n_windows]
    np.testing.assert_allclose(
        steps[1:, 1:], products[1:, 1:] - products[:-1, :-1], atol=1e-9 * products.max()
    )
    np.testing.assert_array_equal(steps[0], 0.0)


def test_what_the_kernel_cannot_do_is_named(series):
    some = searches([series[-1]])[0]
    assert on_cuda.shape_of(some, CPU) == Shape(8, 8)
    wide = ask(
        np.zeros((400, 200)) + np.random.default_rng(1).normal(size=(400, 200)),
        **{"window_length": 32, "stride": 2, "measure": "pearson", "n_neighbors": 4, "exclusion": 0},
        **{"spread": 0, "bank": "series", "features": None},
    ).search
    assert on_cuda.shape_of(wide, CPU) is None
    assert on_cuda.too_much_for_it(some, CPU) is None
    assert "one stride is 1600 products" in on_cuda.too_much_for_it(wide, CPU)
    (many,) = searches([series[-1]], n_neighbors=33)
    assert "n_neighbors is 33, and it lists at most 32" in on_cuda.too_much_for_it(many, CPU)
    (apart,) = searches([series[-1]], spread=10)
    assert "spread" in on_cuda.too_much_for_it(apart, CPU)


@pytest.fixture
def _asked_anew():
    why_not.cache_clear()
    yield
    why_not.cache_clear()


@pytest.mark.usefixtures("_asked_anew")
def test_an_old_torch_is_named_as_the_reason(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.delattr(torch.cuda, "_compile_kernel")
    assert f"torch {torch.__version__} cannot compile it" in why_not(torch.device("cuda", 0))


@pytest.mark.usefixtures("_asked_anew")
def test_an_old_gpu_is_named_as_the_reason(monkeypatch):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    assert why_not(torch.device("cuda", 0)) == "Tesla T4 has compute capability 7.5, needed is 8.0"


@pytest.mark.usefixtures("_asked_anew")
def test_a_compiler_that_fails_is_named_as_the_reason(monkeypatch):
    def fails(*_, **__):
        raise RuntimeError("libnvrtc.so.12: cannot open shared object file\nmore")

    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    monkeypatch.setattr(torch.cuda, "_compile_kernel", fails)
    reason = "compiling it failed (libnvrtc.so.12: cannot open shared object file)"
    assert why_not(torch.device("cuda", 0)) == reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there_is_named(series):
    with pytest.raises(ConfigError, match="device 'cuda' cannot be used"):
        retrieve_many(series, window_length=32, device="cuda")


def test_keys_are_read_as_similarity_and_window():
    similarity, neighbors = np.full((1, 3), -np.inf), np.full((1, 3), -1)
    keys = np.array([[(2**31 << 29) + 2**29 - 1 - 7, (-(2**32) << 29) + 2**29 - 1, -(2**63)]])
    on_cuda.read_keys(keys, similarity, neighbors)
    np.testing.assert_array_equal(similarity, [[0.5, -1.0, -np.inf]])
    np.testing.assert_array_equal(neighbors, [[7, 0, -1]])


def test_a_message_is_said_once(caplog):
    on_torch._say_once.cache_clear()
    with caplog.at_level("WARNING", logger="raxss"):
        for _ in range(3):
            on_torch._say_once("the slower path, for this reason")
    assert [record.getMessage() for record in caplog.records] == ["the slower path, for this reason"]
