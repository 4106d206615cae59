"""Many series at once: exactly what each gives alone, on any threads, and tables that cover every pair once."""

import numpy as np
import pytest
import torch

from raxss.errors import ConfigError, DataError
from raxss.method.retrieval.cuda_layout import Shape, lay_out_on, too_much_for_it
from raxss.method.retrieval.cuda_plan import plan
from raxss.method.retrieval.front import plan_search, retrieve, retrieve_many
from raxss.method.retrieval.on_cuda import why_not

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
    for item, found in zip(series, together, strict=True):
        alone = retrieve(item, **settings)
        np.testing.assert_array_equal(found.neighbors, alone.neighbors)
        np.testing.assert_array_equal(found.similarity, alone.similarity)
        np.testing.assert_array_equal(found.support, alone.support)
        np.testing.assert_array_equal(found.flags, alone.flags)
        assert (found.bank, found.bank_size, found.space) == (alone.bank, alone.bank_size, alone.space)


def test_the_torch_path_takes_many_series_too(series):
    on_cpu = retrieve_many(series, window_length=32, stride=2)
    on_torch_cpu = retrieve_many(series, window_length=32, stride=2, device="cpu:0")
    for item, other in zip(on_cpu, on_torch_cpu, strict=True):
        np.testing.assert_array_equal(item.neighbors, other.neighbors)


def test_each_series_has_its_own_features(series, rng):
    some = [item for item in series if len(item) > 200]
    features = [rng.normal(size=(len(item) // 2 - 15, 4)) for item in some]
    together = retrieve_many(some, window_length=32, stride=2, features=features)
    for item, vectors, found in zip(some, features, together, strict=True):
        alone = retrieve(item, window_length=32, stride=2, features=vectors)
        np.testing.assert_array_equal(found.neighbors, alone.neighbors)
        assert found.space == "features"


def test_features_of_too_few_series_are_refused(series):
    with pytest.raises(DataError, match="features of 1 series were given for 8 series"):
        retrieve_many(series, window_length=32, features=[np.zeros((3, 2))])


def test_no_series_give_no_lists():
    assert retrieve_many([], window_length=32) == []


def test_progress_rises_to_one(series):
    shares = []
    retrieve_many(series, window_length=32, on_progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
    assert min(shares) >= 0.0


def searches(series, **settings):
    settings = {"window_length": 32, "stride": 2, "n_neighbors": 4} | settings
    return [plan_search(item, **settings).search for item in series]


@pytest.mark.parametrize("most_products", [10**9, 20_000])
@pytest.mark.parametrize("settings", [{}, {"bank": "local", "bank_size": 100}])
def test_the_tables_of_the_launches_cover_every_row_and_every_column_in_reach(
    series, settings, most_products
):
    some = searches([*series[4:], series[7][::-1] * np.where(np.arange(3000) < 900, 1e4, 1.0)], **settings)
    layout = lay_out_on(CPU, some)
    n_rows, chunk, seen = layout.shape.rows, layout.shape.chunk, set()
    owner = {int(origin): search for origin, search in zip(layout.origins, some, strict=True)}
    for tables in plan(layout, most_products):
        assert tables.n_products <= most_products or len(tables.blocks) == 1
        taken = np.zeros(tables.n_products, int)
        for target, begin, end in tables.groups.permute(0, 2, 1).reshape(-1, 3).tolist():
            taken[target + begin : target + end] += 1
        assert taken.max() == 1  # no two anchors write to the same place
        assert tables.n_partial == len(tables.merges) == 0  # series that are together are not divided
        for block in tables.blocks.tolist():
            origin, row, n, n_windows, segment, n_segments, centre, *starts, goes_to = block
            start, low, high, column = starts
            search = owner[origin]
            assert n_windows == search.n_windows
            assert goes_to < 0
            assert (origin, row) not in seen
            seen.add((origin, row))
            assert 0 <= centre < n_segments
            mine = tables.segments[segment : segment + n_segments].tolist()
            ends = [at + n_chunks * chunk for at, n_chunks in mine]
            assert [at for at, _ in mine[1:]] == ends[:-1]
            # A pair comes by at most a chunk before its column.
            needed = range(max(row - search.farthest, 0), min(row + n + search.farthest, search.n_windows))
            assert mine[0][0] <= needed[0] - chunk + 1
            assert needed[-1] < ends[-1]
            # Where diagonals begin was computed: in the first row, and in the first column.
            assert low <= max(needed[0] - n_rows, 0)
            assert high > needed[-1]
            assert (taken[start + origin + low : start + origin + high] == 1).all()
            assert (column > -(2**61)) == (low == 0)
            if low == 0:
                assert (taken[column + origin + row : column + origin + row + n] == 1).all()
    assert seen == {
        (int(origin), row)
        for origin, search in zip(layout.origins, some, strict=True)
        for row in range(0, search.n_windows, n_rows)
    }


@pytest.mark.parametrize("n_samples", [33, 36, 60, 777, 3000])
@pytest.mark.parametrize("most_products", [10**9, 9_000, 3_000])
@pytest.mark.parametrize("settings", [{}, {"bank": "local", "bank_size": 100}])
def test_a_series_alone_is_divided_and_the_parts_of_a_block_have_all_its_columns_and_one_list(
    rng, n_samples, most_products, settings
):
    (search,) = searches([rng.normal(size=n_samples)], **settings)
    layout = lay_out_on(CPU, [search])
    n_rows, chunk, n = layout.shape.rows, layout.shape.chunk, search.n_windows
    merged = []
    for tables in plan(layout, most_products):
        taken = np.zeros(tables.n_partial, int)
        for first, n_parts, place, height in tables.merges.tolist():
            parts = tables.blocks[tables.blocks[:, 1] == place].tolist()
            assert len(parts) == n_parts > 1
            assert [part[11] for part in parts] == [first + which * n_rows for which in range(n_parts)]
            assert {part[2] for part in parts} == {height}
            taken[first : first + n_parts * n_rows] += 1
            mine = [
                segment for part in parts for segment in tables.segments[part[4] : part[4] + part[5]].tolist()
            ]
            ends = [at + n_chunks * chunk for at, n_chunks in mine]
            assert [at for at, _ in mine[1:]] == ends[:-1]
            assert min(n_chunks for _, n_chunks in mine) >= 1
            assert mine[0][0] <= max(place - search.farthest, 0) + 1 - chunk
            assert ends[-1] >= min(place + height + search.farthest, n)
            merged += range(place, place + height)
        assert (taken == 1).all()
    assert merged == list(range(n))  # a few blocks for so many processors: all are divided


def test_factors_on_the_device_are_the_steps_of_the_recurrence(rng):
    (search,) = searches([rng.normal(size=(2, 300)).cumsum(axis=1)])
    layout = lay_out_on(CPU, [search])
    windows = search.windows - search.means[:, :, np.newaxis]
    products = np.einsum("vil,vjl->ij", windows, windows)
    steps = (layout.rows @ layout.columns.T).numpy()[: search.n_windows, : search.n_windows]
    np.testing.assert_allclose(
        steps[1:, 1:], products[1:, 1:] - products[:-1, :-1], atol=1e-9 * products.max()
    )
    np.testing.assert_array_equal(steps[0], 0.0)


def test_what_the_kernel_cannot_do_is_named(series):
    some = searches([series[-1]])[0]
    assert lay_out_on(CPU, [some]).shape == Shape(1, 8)
    (wide,) = searches([np.random.default_rng(1).normal(size=(400, 200))])
    assert too_much_for_it(some, CPU) is None
    assert "one stride is 1600 products" in too_much_for_it(wide, CPU)
    (many,) = searches([series[-1]], n_neighbors=33)
    assert "n_neighbors is 33, and it lists at most 32" in too_much_for_it(many, CPU)
    (apart,) = searches([series[-1]], spread=10)
    assert "spread" in too_much_for_it(apart, CPU)


@pytest.fixture
def _fresh_why_not():
    why_not.cache_clear()
    yield
    why_not.cache_clear()


def failing_compiler(*_, **__):
    raise RuntimeError("libnvrtc.so.12: cannot open shared object file\nmore")


@pytest.mark.usefixtures("_fresh_why_not")
@pytest.mark.parametrize(
    ("capability", "compiler", "reason"),
    [
        ((9, 0), None, f"torch {torch.__version__} cannot compile it; 2.11 can"),
        (
            (7, 5),
            failing_compiler,
            "Tesla T4 has compute capability 7.5, and float64 matrix instructions need 8.0",
        ),
        (
            (9, 0),
            failing_compiler,
            "compiling it failed (libnvrtc.so.12: cannot open shared object file)",
        ),
    ],
)
def test_the_reason_why_the_kernel_cannot_run_is_named(monkeypatch, capability, compiler, reason):
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    monkeypatch.setattr(torch.cuda, "device", lambda device: torch.no_grad())
    if compiler is None:
        monkeypatch.delattr(torch.cuda, "_compile_kernel")
    else:
        monkeypatch.setattr(torch.cuda, "_compile_kernel", compiler)
    assert why_not(torch.device("cuda", 0)) == reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_device_that_is_not_there_is_named(series):
    with pytest.raises(ConfigError, match="device 'cuda' cannot be used"):
        retrieve_many(series, window_length=32, device="cuda")
