"""Memory: what is free, and that what does not fit is refused in numbers before it is begun."""

import pytest

from raxss._core import memory
from raxss.errors import DataError


@pytest.fixture
def system(tmp_path, monkeypatch):
    """A machine of 8 GB in a container of 2 GB, of which 1.5 GB are used, 0.25 GB by files that can go."""
    (tmp_path / "meminfo").write_text("MemTotal: 9000000 kB\nMemAvailable:    8000000 kB\n")
    (tmp_path / "memory.max").write_text("2000000000\n")
    (tmp_path / "memory.current").write_text("1500000000\n")
    (tmp_path / "memory.stat").write_text("anon 5\ninactive_file 250000000\n")
    monkeypatch.setattr(memory, "_MEMINFO", tmp_path / "meminfo")
    monkeypatch.setattr(memory, "_GROUP", tmp_path)
    return tmp_path


def test_the_container_counts_where_it_has_less_than_the_machine(system):
    assert memory.available_memory() == 750_000_000
    (system / "memory.max").write_text("max\n")
    assert memory.available_memory() == 8_000_000 * 1024
    (system / "memory.max").unlink()
    assert memory.available_memory() == 8_000_000 * 1024


def test_without_known_memory_nothing_is_refused(system, monkeypatch):
    (system / "meminfo").write_text("nonsense")
    (system / "memory.max").unlink()
    monkeypatch.delattr("os.sysconf")
    assert memory.available_memory() is None
    memory.refuse_too_large(10**18, "the table", "Ask for less.")


def test_what_does_not_fit_is_refused_with_both_numbers(system):
    memory.refuse_too_large(750_000_000, "the table", "Ask for less.")
    with pytest.raises(
        DataError, match=r"the table needs 0\.8 GB of memory, but 0\.8 GB are free\. Ask for less"
    ):
        memory.refuse_too_large(750_000_001, "the table", "Ask for less.")


def test_the_memory_of_this_machine_is_known():
    assert memory.available_memory() > 0
