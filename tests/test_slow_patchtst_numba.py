"""The compiled PatchTST as processors without 512-bit registers run it."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

FEATURES = "+sse4.2,+popcnt,+avx,+f16c,+avx2,+fma,+bmi,+bmi2"


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="names features of x86-64")
def test_narrow_vectors_give_what_the_plain_layers_give(tmp_path: Path) -> None:
    narrow = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": FEATURES, "NUMBA_CACHE_DIR": str(tmp_path)}
    environment = {**os.environ, **narrow}
    lanes = "from raxss._core.vector_code import LANES; print(LANES)"
    process = subprocess.run(
        [sys.executable, "-c", lanes], env=environment, capture_output=True, text=True, check=True
    )
    assert process.stdout.strip() == "8"
    tests = Path(__file__).with_name("test_patchtst_numba.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tests)]
    ran = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout
