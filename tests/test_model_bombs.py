"""Model folders that ask for much memory or time: each is refused before it is taken."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from memory import PEAK
from raxss._core.sealing import CARD, FACTS, HISTORY, SETTINGS, WEIGHTS
from resealed import reseal, unseal


def backbone(name, **options):
    def change(facts):
        facts["settings"]["backbone"].update(backbone=name, backbone_options=options)

    return change


def wide(name, window_length, n_variates=1, **options):
    """Windows of another size, and everything that must agree with that."""

    def change(facts):
        backbone(name, **options)(facts)
        facts.update(window_length=window_length, n_variates=n_variates)
        facts["settings"]["windows"]["window_length"] = window_length
        facts["training_data"]["n_samples"] = [window_length, window_length]

    return change


FACT_BOMBS = {
    "window of 1e9": lambda facts: facts.update(window_length=10**9),
    "window of 1e30": lambda facts: facts.update(window_length=10**30),
    "consistent window of 1e9": wide("convnet", 10**9, width=1),
    "largest window": wide("convnet", 2**22, width=1),
    "1e9 variates": lambda facts: facts.update(n_variates=10**9),
    "many variates": lambda facts: facts.update(n_variates=2**17),
    "long names": lambda facts: facts.update(classes_dtype="<U500000000"),
    "a million classes": lambda facts: facts.update(classes=list(range(10**6)), classes_dtype="<i8"),
    "1e9 trials": lambda facts: facts["trial"].update(n_series=10**9),
    "a million features": lambda facts: facts.update(feature_names_in=["x"] * 10**6, n_features_in=10**6),
    "wide convnet": backbone("convnet", width=512),
    "long patchtst": wide("patchtst", 2**22, patch_stride=1, d_model=4096),
    "long timesnet": wide("timesnet", 2**22, d_model=4096, d_ff=4096, n_kernels=16),
    "long dlinear": wide("dlinear", 2**22, n_components=2**16),
    "deep moderntcn": wide("moderntcn", 2**22, widths=[4096] * 64, n_blocks=64),
    "deep gru": backbone("gru", d_model=4096, n_layers=64),
    "deep mamba": backbone("mamba", d_model=4096, n_layers=64, d_state=4096, expand=64),
    "many rows": wide("multiview", 16, 2**18, views=["ppv"], n_dilations=32),
    "long multiview": wide("multiview", 2**22),
    "ensemble": wide("ensemble", 2**21, members=64, of="timesnet", options={"d_model": 512}),
    "committee of long": wide("ensemble", 2**22, members=64, of="convnet"),
    "deep options": backbone("convnet", width=[[[[]]]] * 1000),
    "large projection": lambda facts: facts["settings"]["retrieval"].update(projection=10**9),
}


def zeros_of(n_bytes, head=b""):
    """A file with a hole: large for whoever reads it, small on the disk."""

    def write(path):
        with open(path, "wb") as file:
            file.write(head)
            file.truncate(n_bytes)

    return write


def header_of(text, size=None):
    return lambda path: path.write_bytes((size or len(text)).to_bytes(8, "little") + text)


def many_tensors(n_tensors):
    item = '"{}":{{"dtype":"F32","shape":[0],"data_offsets":[0,0]}}'
    return ("{" + ",".join(item.format(number) for number in range(n_tensors)) + "}").encode()


FILE_BOMBS = {
    "weights of 100 GB": (WEIGHTS, zeros_of(10**11)),
    "weights of 2 GB": (WEIGHTS, zeros_of(2 * 10**9)),
    "a header of 2 GB": (WEIGHTS, zeros_of(2 * 10**9, head=(10**9).to_bytes(8, "little"))),
    "a header of 1e19": (WEIGHTS, header_of(b"{}", 10**19)),
    "a million tensors": (WEIGHTS, header_of(many_tensors(10**6))),
    "thousands of tensors": (WEIGHTS, header_of(many_tensors(100_000))),
    "a header of lists": (WEIGHTS, header_of(b'{"a":[' + b"[]," * 3_000_000 + b"0]}")),
    "a deep header": (WEIGHTS, header_of(b"[" * 1_000_000)),
    "a shape of 1e18": (
        WEIGHTS,
        header_of(
            b'{"a":{"dtype":"F32","shape":[1000000000,1000000000],"data_offsets":[0,4000000000000000000]}}'
        ),
    ),
    "a config of 10 GB": (FACTS, zeros_of(10**10)),
    "a config of lists": (FACTS, lambda path: path.write_bytes(b"[" + b"[]," * 15_000_000 + b"0]")),
    "a config of objects": (FACTS, lambda path: path.write_bytes(b"[" + b'{"":0},' * 900_000 + b"0]")),
    "a config of digits": (FACTS, lambda path: path.write_bytes(b"9" * 50_000_000)),
    "a deep config": (FACTS, lambda path: path.write_bytes(b'{"a":' * 1_000_000)),
    "a history of 10 GB": (HISTORY, zeros_of(10**10)),
    "a card of 10 GB": (CARD, zeros_of(10**10)),
    "settings of 10 GB": (SETTINGS, zeros_of(10**10)),
    "a wide history": (HISTORY, lambda path: path.write_bytes(b"epoch," * 2_000_000 + b"a\n")),
}

MEASURE = (
    PEAK
    + """
import sys, time, warnings
from pathlib import Path
from raxss import RAxSSClassifier
from raxss.errors import ModelError
warnings.simplefilter("ignore")
RAxSSClassifier.from_pretrained(sys.argv[1], device="cpu")  # with all imports
for folder in sorted(Path(sys.argv[2]).iterdir()):
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before, began = peak(), time.process_time()  # not of other programs on the machine
    try:
        RAxSSClassifier.from_pretrained(folder / "model", device="cpu")
        result = "LOADED"
    except ModelError as error:
        result = str(error)[:150]
    except BaseException as error:
        result = f"UNTYPED {type(error).__name__}"
    print(folder.name, (peak() - before) // 1024, f"{time.process_time() - began:.2f}", result, sep="|", flush=True)
"""
)


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="only Linux tells the peak of memory")
def test_bombs_are_refused_before_memory_is_taken(full_folder, tmp_path):
    """Sealed and without a seal: most of them cost more than 3 GB or 20 s before."""
    places = tmp_path / "bombs"
    for sealed in (True, False):
        for name, change in FACT_BOMBS.items():
            folder = shutil.copytree(full_folder, places / f"{name}, {sealed}" / "model")
            reseal(folder, change)
            if not sealed:
                unseal(folder)
        for name, (file, write) in FILE_BOMBS.items():
            folder = shutil.copytree(full_folder, places / f"{name}, {sealed}" / "model")
            if not sealed:
                unseal(folder)
            write(folder / file)
            if sealed and file in (WEIGHTS, HISTORY) and (folder / file).stat().st_size < 10**9:
                reseal(folder)
    script = [sys.executable, "-c", MEASURE, full_folder, places]
    done = subprocess.run(script, check=True, capture_output=True, text=True)
    rows = [line.split("|", maxsplit=3) for line in done.stdout.splitlines()]
    # Files that are not opened where there is no seal; windows that weights of a convnet do not depend on.
    harmless = {"a card of 10 GB, False", "settings of 10 GB, False"}
    harmless |= {"largest window, True", "largest window, False"}
    assert len(rows) == 2 * (len(FACT_BOMBS) + len(FILE_BOMBS))
    for name, megabytes, seconds, result in rows:
        assert (result == "LOADED") == (name in harmless), (name, result)
        assert "'model'" in result or name in harmless, (name, result)
        assert int(megabytes) < 500, (name, megabytes)
        assert float(seconds) < 5, (name, seconds)
