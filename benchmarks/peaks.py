"""How fast the processor can multiply and add at best.

    -> {"threads", "float64_gmacs", "float32_gmacs", "float64_matmul_gmacs", "float32_matmul_gmacs"}

Twelve independent chains of fused multiply-adds in the widest registers, on every core at once, with nothing
read from memory: no kernel can do more. The matrix product of torch stands beside it as what a tuned
library reaches. In 10^9 multiply-adds a second (one is two floating-point operations).
"""

from __future__ import annotations

import ctypes
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import llvmlite.binding as llvm
import torch

from benchmarks.common import cpu_flags, n_cores

CHAINS = 12  # two units with a latency of four or five steps need ten at least; sixteen registers hold twelve


def peak_rates(*, seconds: float = 0.4, matrix: int = 1536, n_repeats: int = 5) -> dict[str, Any]:
    """Measure both peaks in both precisions, on as many threads as there are cores."""
    threads = n_cores()
    rates: dict[str, Any] = {"threads": threads}
    for name, bits, kind in (("float64", 64, torch.float64), ("float32", 32, torch.float32)):
        rates[f"{name}_gmacs"] = _chains_rate(name, bits, threads, seconds, n_repeats) / 1e9
        rates[f"{name}_matmul_gmacs"] = _matmul_rate(kind, matrix, n_repeats) / 1e9
    return rates


def _matmul_rate(kind: torch.dtype, n: int, n_repeats: int) -> float:
    """Multiply-adds a second of a square product; the best of several, as for the chains."""
    generator = torch.Generator().manual_seed(0)
    first = torch.randn(n, n, dtype=kind, generator=generator)
    durations = []
    for _ in range(n_repeats + 1):
        begin = time.perf_counter()
        first @ first
        durations.append(time.perf_counter() - begin)
    return n**3 / min(durations[1:])


def _chains_rate(name: str, bits: int, threads: int, seconds: float, n_repeats: int) -> float:
    lanes = _register_bits() // bits
    engine, chains = _compiled_chains("double" if name == "float64" else "float", lanes)

    def rate(_: int) -> float:
        n_rounds = 100_000
        while True:
            begin = time.perf_counter()
            chains(n_rounds)  # releases the interpreter lock
            elapsed = time.perf_counter() - begin
            if elapsed >= seconds / n_repeats:
                return n_rounds * CHAINS * lanes / elapsed
            n_rounds = int(n_rounds * min(10, max(1.2, 1.2 * seconds / n_repeats / max(elapsed, 1e-9))))

    with ThreadPoolExecutor(threads) as pool:
        best = max(sum(pool.map(rate, range(threads))) for _ in range(n_repeats))
    del engine  # owned the code until here
    return best


def _register_bits() -> int:
    flags = cpu_flags()
    return 512 if "avx512f" in flags else 256 if "avx2" in flags else 128


def _compiled_chains(scalar: str, lanes: int) -> tuple[Any, Any]:
    """``chains(n_rounds)``: every round takes each of the chains one multiply-add further."""
    vector = f"<{lanes} x {scalar}>"
    suffix = f"v{lanes}f{64 if scalar == 'double' else 32}"
    ones = ", ".join(f"{scalar} 1.0" for _ in range(lanes))
    factor = ", ".join(f"{scalar} 0.5" for _ in range(lanes))
    indices = range(CHAINS)
    lines = [
        f"declare {vector} @llvm.fma.{suffix}({vector}, {vector}, {vector})",
        f"define {scalar} @chains(i64 %rounds) {{",
        "entry:",
        "  br label %loop",
        "loop:",
        "  %round = phi i64 [ 0, %entry ], [ %next, %loop ]",
        *(
            f"  %a{k} = phi {vector} [ <{', '.join(f'{scalar} {k + 2}.0' for _ in range(lanes))}>, %entry ],"
            f" [ %b{k}, %loop ]"
            for k in indices
        ),
        *(
            f"  %b{k} = call {vector} @llvm.fma.{suffix}"
            f"({vector} %a{k}, {vector} <{factor}>, {vector} <{ones}>)"
            for k in indices
        ),
        "  %next = add i64 %round, 1",
        "  %more = icmp ult i64 %next, %rounds",
        "  br i1 %more, label %loop, label %done",
        "done:",
        f"  %s0 = fadd {vector} %b0, %b1",
        *(f"  %s{k} = fadd {vector} %s{k - 1}, %b{k + 1}" for k in indices[1:-1]),
        f"  %sum = extractelement {vector} %s{CHAINS - 2}, i32 0",
        f"  ret {scalar} %sum",
        "}",
    ]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    module = llvm.parse_assembly("\n".join(lines))
    target = llvm.Target.from_default_triple().create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=llvm.get_host_cpu_features().flatten(), opt=2
    )
    engine = llvm.create_mcjit_compiler(module, target)
    engine.finalize_object()
    returned = ctypes.c_double if scalar == "double" else ctypes.c_float
    return engine, ctypes.CFUNCTYPE(returned, ctypes.c_int64)(engine.get_function_address("chains"))
