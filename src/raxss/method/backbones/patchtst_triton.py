"""PatchTST on a GPU by few Triton kernels, in bf16 with attention scores in registers.

    windows (batch, n_variates, length) -> features (batch, n_variates * n_patches * d_model)

The same numbers as `PatchTST.features` under bf16 autocast, to the rounding of bf16: matrix products of bf16 with
sums in float32, tokens in bf16 between kernels, statistics, softmax and weights in float32. Dropout masks are drawn
again in the backward pass from one seed per call. What it takes: the sizes below, an NVIDIA GPU from Ampere on,
Triton, and bf16 autocast. All else runs as plain layers. Next: patchtst_triton_kernels.py holds the kernels.
"""

from __future__ import annotations

import logging
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from raxss.method.backbones.revin import RevIN

if TYPE_CHECKING:
    from raxss.method.backbones.patchtst import PatchTST

logger = logging.getLogger("raxss")

D_MODEL, N_HEADS, D_FF = 32, 4, 128
MOST_PATCHES, LONGEST_PATCH, LONGEST_WINDOW = 128, 64, 16_384


class Launch(NamedTuple):
    """How a kernel is spread over the device; found by trying on an H200."""

    programs: int  # on each multiprocessor
    warps: int
    rows: int = 0  # in a tile, or queries at a time
    registers: int | None = None  # at most, for each thread
    stages: int = 1  # tiles on their way from memory


LAUNCHES = {
    "embed": Launch(4, 2),
    "embed_backward": Launch(4, 2),
    "attend": Launch(4, 2, 32, stages=3),
    "attend_backward": Launch(4, 2, 32, stages=3),
    "mix": Launch(8, 2, 32, registers=128, stages=3),
    "mix_backward": Launch(4, 2, 64, stages=2),
    "project_backward": Launch(4, 2, 32, stages=3),
    "transform": Launch(4, 2, 32, stages=2),
    "transform_backward": Launch(4, 2, 32, stages=2),
    "normalise": Launch(0, 4, 256),
    "normalise_backward": Launch(8, 4, 64),
}


def suits(network: PatchTST, windows: Tensor) -> bool:
    """Whether `features` can stand in for ``network.features``: device, precision and sizes."""
    if windows.device.type != "cuda" or not torch.is_autocast_enabled("cuda"):
        return False
    if torch.get_autocast_dtype("cuda") != torch.bfloat16 or not has_sizes(network, windows):
        return False
    wants_gradient = torch.is_grad_enabled() and any(
        parameter.requires_grad for parameter in network.parameters()
    )
    if windows.requires_grad or (wants_gradient and not network.training):
        return False
    device = torch.cuda.get_device_properties(windows.device)
    return why_not(device.name, (device.major, device.minor)) is None


def has_sizes(network: PatchTST, windows: Tensor) -> bool:
    """Whether the layers are of the sizes and in the state that the kernels know."""
    return (
        windows.is_floating_point()
        and network.as_built(windows)
        and windows.shape[-1] <= LONGEST_WINDOW
        and network.patch_length <= LONGEST_PATCH
        and len(network.positions) <= MOST_PATCHES
        and network.positions.shape[1] == D_MODEL
        and type(network.revin) in (RevIN, nn.Identity)
        and all(layer_fits(layer) for layer in network.encoder)
    )


def layer_fits(layer: Any) -> bool:
    """Whether one layer of the encoder is of the sizes that the kernels know."""
    n_hidden = layer.feed_forward[0].out_features
    return layer.n_heads == N_HEADS and n_hidden == D_FF and layer.norm.momentum is not None


@cache
def why_not(device: str, capability: tuple[int, int]) -> str | None:
    """What keeps the kernels from running on a CUDA device, logged once; None if nothing does."""
    reason = None
    if capability < (8, 0):
        found = ".".join(map(str, capability))
        reason = f"{device} has no bf16 matrix units (compute capability {found}, 8.0 is needed)"
    else:
        try:
            import triton  # type: ignore[import-untyped]  # noqa: F401
        except ImportError as error:
            reason = (
                f"Triton cannot be imported ({error}); `pip install triton` makes this several times as fast"
            )
    if reason is not None:
        logger.info("PatchTST runs as plain layers on the GPU: %s.", reason)
    return reason


def features(network: PatchTST, windows: Tensor) -> Tensor:
    """``(batch, n_variates, length)`` -> ``(batch, n_variates * n_patches * 32)``, in bf16.

    In training with dropout and batch statistics (the running ones are updated as `torch.nn.BatchNorm1d` does),
    and differentiable in the parameters; in evaluation with the running statistics, without gradients.
    """
    with torch.cuda.device(windows.device):
        return run(network, windows, dtype=torch.bfloat16)


def run(network: PatchTST, windows: Tensor, *, dtype: torch.dtype) -> Tensor:
    """`features` in any precision; tests run it in float32 through Triton's interpreter."""
    seed = torch.randint(2**62, (1,), device=windows.device)
    work = FusedPass(network, windows.detach().contiguous(), seed, dtype)
    found: Tensor = Features.apply(work, *work.parameters.values())  # type: ignore[no-untyped-call]
    return found.view(len(windows), -1)


class Features(torch.autograd.Function):
    """The encoder as one step of autograd: intermediates are kept as its kernels want them."""

    @staticmethod
    def forward(ctx: Any, work: FusedPass, *parameters: Tensor) -> Tensor:
        """The features; parameters are named so that autograd sees them."""
        ctx.work = work
        ctx.versions = [parameter._version for parameter in parameters]
        return work.forward()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        """The gradient of every parameter."""
        work: FusedPass = ctx.work
        if ctx.versions != [parameter._version for parameter in work.parameters.values()]:
            raise RuntimeError("a parameter of PatchTST was changed in place between forward and backward.")
        if len(work.kept) != len(work.network.encoder):
            raise RuntimeError("features of PatchTST can be differentiated once, and in training only.")
        gradients = work.backward(grad_outputs[0].contiguous())
        return (None, *(gradients.get(name) for name in work.parameters))


class FusedPass:
    """One pass over one batch: sizes, buffers and the order of the kernels."""

    def __init__(self, network: PatchTST, windows: Tensor, seed: Tensor, dtype: torch.dtype) -> None:
        import triton
        import triton.language as tl  # type: ignore[import-untyped]

        from raxss.method.backbones import patchtst_triton_kernels as kernels

        self.kernels: Any = kernels
        self.triton = triton
        self.network: Any = network
        self.windows, self.seed, self.dtype = windows, seed, dtype
        self.type = {torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[dtype]
        self.train = network.training
        # those that features depend on, in the order of `Features.backward`
        self.parameters = {
            name: named_parameter
            for name, named_parameter in network.named_parameters()
            if not name.startswith("head.")
        }
        self.n_windows, self.n_variates, self.length = windows.shape
        self.n_series = self.n_windows * self.n_variates
        self.n_tokens = len(network.positions)
        self.n_rows = self.n_series * self.n_tokens
        self.block = max(32, triton.next_power_of_2(self.n_tokens))
        self.taps = max(16, triton.next_power_of_2(network.patch_length))
        self.on_gpu = windows.device.type == "cuda"
        self.n_processors = (
            torch.cuda.get_device_properties(windows.device).multi_processor_count if self.on_gpu else 1
        )
        item, nought = torch.ones(D_MODEL, device=windows.device), torch.zeros(D_MODEL, device=windows.device)
        self.identity = torch.stack([item, nought])
        self.kept: list[dict[str, Tensor]] = []

    # -------------------------------------------------------------------------------------------- small helpers
    def tokens(self, n_times: int = 1) -> Tensor:
        """Room for all tokens."""
        return torch.empty(n_times * self.n_rows, D_MODEL, device=self.windows.device, dtype=self.dtype)

    def numbers(self, *shape: int) -> Tensor:
        """Room for sums and statistics, in float32."""
        return torch.empty(shape, device=self.windows.device, dtype=torch.float32)

    def n_programs(self, name: str, n_pieces: int | None = None) -> int:
        """As many as the device holds, none without work: by default tiles of tokens."""
        if n_pieces is None:
            n_pieces = -(-self.n_rows // LAUNCHES[name].rows)
        return min(n_pieces, LAUNCHES[name].programs * self.n_processors)

    def n_by_head(self, name: str) -> int:
        """A program stays with one head, so that it reads weights once."""
        return N_HEADS * min(self.n_series, -(-LAUNCHES[name].programs * self.n_processors // N_HEADS))

    def dropout(self, probability: float) -> dict[str, Any]:
        """The bits below which a number is dropped (16 a decision: exact to 1e-5), and what keeps the mean."""
        if not (self.train and probability > 0):
            return {"limit": 0, "drop_gain": 1.0, "DROP": False}
        limit = min(round(probability * 2**16), 2**16 - 1) << 16
        signed = limit - 2**32 if limit >= 2**31 else limit  # as Triton takes 32 bits
        return {"limit": signed, "drop_gain": 1 / (1 - probability), "DROP": True}

    def launch(self, name: str, grid: tuple[int, ...], *arguments: Any, **constants: Any) -> None:
        """Start a kernel with its options, and its number of rows where it takes tiles."""
        launch = LAUNCHES[name]
        if launch.rows:
            constants["ROWS"] = launch.rows
        getattr(self.kernels, name)[grid](
            *arguments, **constants, TYPE=self.type, num_warps=launch.warps, num_stages=launch.stages,
            maxnreg=launch.registers,
        )  # fmt: skip

    def projections(self, layer: Any) -> tuple[Tensor, ...]:
        """Weight and bias of query, key and value."""
        return tuple(
            parameter for linear in (layer.query, layer.key, layer.value) for parameter in linear.parameters()
        )

    # ------------------------------------------------------------------------------------------------- forward
    def forward(self) -> Tensor:
        """Features, ``(n_series * n_tokens, 32)``."""
        sums, affine = self.embed(), self.identity
        for number, layer in enumerate(self.network.encoder):
            sums, affine = self.layer(number, layer, sums, affine)
        features, n_tiles = self.tokens(), -(-self.n_rows // LAUNCHES["normalise"].rows)
        self.launch("normalise", (n_tiles,), sums, affine[0], affine[1], features, self.n_rows)
        self.last = sums
        return features

    def embed(self) -> Tensor:
        """Windows to tokens; each window's mean and 1/deviation are kept."""
        network, tokens = self.network, self.tokens()
        revin = isinstance(network.revin, RevIN)
        self.level = self.numbers(self.n_series, 2)
        affine = revin and network.revin.affine
        item, nought = self.identity.new_ones(self.n_variates), self.identity.new_zeros(self.n_variates)
        self.gain = network.revin.gain.detach() if affine else item
        self.offset = network.revin.offset.detach() if affine else nought
        self.launch(
            "embed", (self.n_programs("embed", self.n_series),), self.windows, self.level, self.gain,
            self.offset, network.projection.weight, network.projection.bias, network.positions, tokens,
            self.n_series, self.n_variates, self.n_tokens, self.length, network.patch_stride,
            network.revin.eps if revin else 0.0, BLOCK=self.block,
            LENGTH=self.triton.next_power_of_2(self.length), TAPS=self.taps, PATCH=network.patch_length,
            REVIN=revin,
        )  # fmt: skip
        return tokens

    def layer(self, number: int, layer: Any, sums: Tensor, affine: Tensor) -> tuple[Tensor, Tensor]:
        """Both sums of one layer; the second one with the scale and shift that normalise it."""
        train, fast = self.train, self.on_gpu
        attended, heads = self.tokens(), self.tokens()
        sizes = self.numbers(self.n_series * N_HEADS if train else 1, self.n_tokens)
        self.launch(
            "attend", (self.n_by_head("attend"),), sums, affine[0], affine[1], *self.projections(layer),
            self.seed, heads, sizes, self.n_series, self.n_tokens, **self.dropout(layer.attention_dropout),
            STREAM=2 * number, TRAIN=train, FAST=fast, BLOCK=self.block, FULL=self.block == self.n_tokens,
        )  # fmt: skip
        n_programs = self.n_programs("mix")
        partials = self.numbers(n_programs, 3, D_MODEL)
        self.launch(
            "mix", (n_programs,), sums, affine[0], affine[1], heads, layer.mix.weight, layer.mix.bias, attended,
            partials, self.n_rows, TRAIN=train,
        )  # fmt: skip
        first = self.settled(layer.norm, partials)
        out = self.tokens()
        normal_sums = self.tokens() if train else out
        n_programs = self.n_programs("transform")
        partials = self.numbers(n_programs, 3, D_MODEL)
        inner, _, dropout, outer = layer.feed_forward
        self.launch(
            "transform", (n_programs,), sums, affine[0], affine[1], attended, layer.norm.weight,
            layer.norm.bias, first[2], first[3], inner.weight, inner.bias, outer.weight, outer.bias, self.seed,
            normal_sums, out, partials, self.n_rows, **self.dropout(dropout.p), STREAM=2 * number + 1,
            TRAIN=train, FAST=fast,
        )  # fmt: skip
        second = self.settled(layer.norm, partials)
        if train:
            self.kept.append(
                {
                    "sums": sums, "affine": affine, "heads": heads, "sizes": sizes, "first": first,
                    "normal_sums": normal_sums, "out": out, "second": second,
                }
            )  # fmt: skip
        return out, second

    def settled(self, norm: nn.BatchNorm1d, partials: Tensor) -> Tensor:
        """Scale, shift, mean and 1/deviation of a normalisation ``(4, 32)``; the running statistics move on."""
        assert norm.running_mean is not None
        assert norm.running_var is not None
        if not self.train:
            deviation = torch.rsqrt(norm.running_var + norm.eps)
            scale = norm.weight * deviation
            return torch.stack([scale, norm.bias - norm.running_mean * scale, norm.running_mean, deviation])
        settled = self.numbers(4, D_MODEL)
        self.kernels.settle[(1,)](
            partials, norm.weight, norm.bias, norm.running_mean, norm.running_var, norm.num_batches_tracked,
            settled, len(partials), norm.eps, norm.momentum, CHUNK=256, num_warps=16,
        )  # fmt: skip
        return settled

    # ------------------------------------------------------------------------------------------------ backward
    def backward(self, given: Tensor) -> dict[str, Tensor]:
        """The gradient of every parameter, by name."""
        gradients: dict[str, Tensor] = {}
        n_programs = self.n_programs("normalise_backward")
        partials = self.numbers(n_programs, 2, D_MODEL)
        second = self.kept[-1]["second"]
        self.kernels.normalise_backward[(n_programs,)](
            self.last, given, second[2], second[3], partials, self.n_rows, ROWS=LAUNCHES["normalise_backward"].rows,
            num_warps=LAUNCHES["normalise_backward"].warps,
        )  # fmt: skip
        for number in reversed(range(len(self.kept))):
            given, partials = self.layer_backward(number, given, partials, gradients)
            self.kept.pop()
        self.embed_backward(given, gradients)
        return gradients

    def layer_backward(
        self, number: int, given: Tensor, partials: Tensor, gradients: dict[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Gradient of the layer's output, and its sums -> the same of the layer below."""
        kept, layer = self.kept[number], self.network.encoder[number]
        name = f"encoder.{number}."
        inner, _, dropout, outer = layer.feed_forward
        sums, affine, normal_sums = kept["sums"], kept["affine"], kept["normal_sums"]
        d_norm = self.numbers(2, D_MODEL)
        gradients[name + "norm.weight"], gradients[name + "norm.bias"] = d_norm
        c = self.settled_backward(partials, kept["second"], d_norm, first=True)

        d_sums, d_normal = self.tokens(), self.tokens(2)
        n_programs = self.n_programs("transform_backward")
        pieces = self.numbers(n_programs, 2 * D_FF * D_MODEL + D_FF)
        self.launch(
            "transform_backward", (n_programs, 2), normal_sums, layer.norm.weight, layer.norm.bias, kept["out"],
            given, *c, inner.weight, inner.bias, outer.weight, self.seed, d_sums, d_normal, pieces, self.n_rows,
            **self.dropout(dropout.p), STREAM=2 * number + 1, FAST=self.on_gpu,
        )  # fmt: skip
        square = D_FF * D_MODEL
        product, d_outer, d_bias = pieces.sum(0).split([square, square, D_FF])
        product, d_bias = product.view(D_FF, D_MODEL), d_bias.view(D_FF, 1)
        gradients[name + "feed_forward.0.weight"] = product * layer.norm.weight + d_bias * layer.norm.bias
        gradients[name + "feed_forward.0.bias"] = d_bias.view(D_FF)
        gradients[name + "feed_forward.3.weight"] = d_outer.view(D_MODEL, D_FF)
        # what flows through the first matrix, summed over all rows: with 1 and with the normalised first sum
        partials = torch.stack([(inner.weight * d_bias).sum(0), (inner.weight * product).sum(0)]).unsqueeze(0)
        c = self.settled_backward(partials, kept["first"], d_norm, first=False)

        d_heads = self.tokens()
        n_programs = self.n_programs("mix_backward")
        pieces = self.numbers(n_programs, D_MODEL, D_MODEL)
        self.launch(
            "mix_backward", (n_programs,), normal_sums, d_sums, d_normal, *c, kept["heads"], layer.mix.weight,
            d_heads, pieces, self.n_rows,
        )  # fmt: skip
        gradients[name + "mix.weight"] = pieces.sum(0)

        # d_sums was read for the last time above
        d_query, d_key, d_value = d_sums, self.tokens(), self.tokens()
        self.launch(
            "attend_backward", (self.n_by_head("attend_backward"),), sums, affine[0], affine[1],
            *self.projections(layer), self.seed, kept["heads"], kept["sizes"], d_heads, d_query, d_key, d_value,
            self.n_series, self.n_tokens, **self.dropout(layer.attention_dropout), STREAM=2 * number,
            FAST=self.on_gpu, BLOCK=self.block, FULL=self.block == self.n_tokens,
        )  # fmt: skip

        d_tokens = d_heads
        n_programs = self.n_programs("project_backward")
        pieces = self.numbers(n_programs, 3 * D_MODEL * D_MODEL + 3 * D_MODEL)
        below = self.kept[number - 1]["second"] if number > 0 else kept["first"]
        self.launch(
            "project_backward", (n_programs,), sums, affine[0], affine[1], normal_sums, d_normal, *c, d_query,
            d_key, d_value, layer.query.weight, layer.key.weight, layer.value.weight, d_tokens, below[2],
            below[3], pieces, self.n_rows, LOWER=number > 0,
        )  # fmt: skip
        square = D_MODEL * D_MODEL
        *weights, d_bq, d_bv, low = pieces.sum(0).split([square] * 3 + [D_MODEL] * 3)
        for which, item in zip(("query", "key", "value"), weights, strict=True):
            gradients[f"{name}{which}.weight"] = item.view(D_MODEL, D_MODEL)
        gradients[name + "query.bias"], gradients[name + "value.bias"] = d_bq, d_bv
        # Both sums are normalised over the batch and a softmax ignores what all keys share: these three do not
        # move the output, and what a sum over the batch would give is rounding alone.
        for which in ("key", "mix", "feed_forward.3"):
            gradients[f"{name}{which}.bias"] = torch.zeros_like(d_bq)
        # Summed over the batch, normalised tokens and keys pass nothing down; queries and values do.
        total = (layer.query.weight * d_bq.unsqueeze(1) + layer.value.weight * d_bv.unsqueeze(1)).sum(0)
        return d_tokens, torch.stack([total, low]).unsqueeze(0)

    def settled_backward(self, partials: Tensor, settled: Tensor, d_norm: Tensor, *, first: bool) -> Tensor:
        """How the gradient of a normalisation follows from that of its output: three numbers a column."""
        coefficients = self.numbers(3, D_MODEL)
        self.kernels.settle_backward[(1,)](
            partials, settled, coefficients, d_norm[0], d_norm[1], len(partials), self.n_rows, FIRST=first,
            CHUNK=256, num_warps=16,
        )  # fmt: skip
        return coefficients

    def embed_backward(self, d_tokens: Tensor, gradients: dict[str, Tensor]) -> None:
        """From tokens to projection, positions and RevIN."""
        network = self.network
        n_programs = self.n_programs("embed_backward", self.n_windows)
        pieces = self.numbers(self.n_variates, n_programs, D_MODEL, self.taps)
        places = self.numbers(self.n_variates, n_programs, self.n_tokens, D_MODEL)
        self.launch(
            "embed_backward", (n_programs, self.n_variates), self.windows, self.level, d_tokens, pieces, places,
            self.n_windows, self.n_variates, self.n_tokens, self.length, network.patch_stride, BLOCK=self.block,
            TAPS=self.taps, PATCH=network.patch_length, REVIN=isinstance(network.revin, RevIN),
        )  # fmt: skip
        # (variates, 32, taps): d_tokens.T @ normalised patches
        product = pieces.sum(1)[..., : network.patch_length]
        placed = places.sum(1)  # (variates, tokens, 32)
        total = placed.sum(1)  # (variates, 32)
        gain, offset = self.gain.view(-1, 1, 1), self.offset.view(-1, 1, 1)
        weight = network.projection.weight.detach()
        gradients["positions"] = placed.sum(0)
        gradients["projection.bias"] = total.sum(0)
        gradients["projection.weight"] = (gain * product + offset * total.unsqueeze(-1)).sum(0)
        gradients["revin.gain"] = (product * weight).sum((1, 2)).unsqueeze(-1)
        gradients["revin.offset"] = (total @ weight).sum(1, keepdim=True)
