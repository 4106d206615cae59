"""PatchTST on a CPU by compiled loops that never store the attention weights.

    windows (batch, n_variates, length) -> features (batch, n_variates * n_patches * d_model)

The loops (patchtst_kernels.py, patchtst_back_kernels.py) take the windows chunk by chunk, on as many threads as
torch uses; a stage ends where batch normalisation needs the moments of the whole batch. The backward pass computes
scores, activations and dropout masks again instead of keeping them. Sums over windows are taken per chunk and
added in the order of the chunks, so results do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from raxss._core.threads import each_on_threads
from raxss.method.backbones import patchtst_back_kernels as back
from raxss.method.backbones import patchtst_kernels as kernels
from raxss.method.backbones.patchtst_kernels import (
    CHUNK,
    COLUMNS,
    HEAD,
    SLOTS,
    Dropout,
    Layer,
    LayerWeights,
    PatchLayout,
)

if TYPE_CHECKING:
    from raxss.method.backbones.patchtst import EncoderLayer, PatchTST

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Moments = tuple[Doubles, Doubles]  # mean and variance, (width,)

N_ARRAYS = 5  # at the end of a `Layer`: those with a row per window


def suits(network: PatchTST, windows: Tensor) -> bool:
    """Whether `features` gives what the plain layers would give for these windows.

    float32 on the CPU, heads of eight numbers, and sizes that fill whole vectors; no transforms of torch that look
    inside. Second derivatives are an error of torch's.
    """
    return (
        windows.device.type == "cpu"
        and windows.dtype == torch.float32
        and not _transformed(windows)
        and network.as_built(windows)
        and _sizes_fit(network, windows)
    )


def _transformed(windows: Tensor) -> bool:
    """Whether torch needs more than values and first derivatives: another precision, a trace, a mapped function."""
    return (
        type(windows) not in (Tensor, nn.Parameter)
        or torch.is_autocast_enabled("cpu")
        or torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._functorch.peek_interpreter_stack() is not None
        or forward_ad._current_level >= 0
    )


def _sizes_fit(network: PatchTST, windows: Tensor) -> bool:
    n_tokens, width = network.positions.shape
    if width % COLUMNS or network.patch_length % 4 or (network.training and len(windows) * n_tokens < 2):
        return False
    return all(
        layer.n_heads * HEAD == width and len(_linears(layer)[4].bias) % 4 == 0 for layer in _layers(network)
    )


def features(network: PatchTST, windows: Tensor) -> Tensor:
    """What `PatchTST.features` gives, where `suits` holds: ``(batch, n_variates * n_patches * d_model)``.

    In training, dropout takes one draw from torch's generator, and running moments move as BatchNorm1d moves them.
    """
    series = network.revin(windows).flatten(0, 1).contiguous()
    parameters = [network.projection.weight, network.projection.bias, network.positions]
    for layer in _layers(network):
        parameters += [item for linear in _linears(layer) for item in (linear.weight, linear.bias)]
        parameters += [layer.norm.weight, layer.norm.bias]
    differentiable = torch.is_grad_enabled() and any(item.requires_grad for item in (series, *parameters))
    if network.training or differentiable:
        seed = int(torch.randint(2**62, ())) if network.training else 0
        tokens: Tensor = _Encoder.apply(network, seed, series, *parameters)  # type: ignore[no-untyped-call]
    else:
        tokens = torch.from_numpy(_predict(network, series.detach().numpy()))
    return tokens.reshape(len(windows), -1)


# The network's parts


def _layers(network: PatchTST) -> list[EncoderLayer]:
    return cast("list[EncoderLayer]", list(network.encoder))


def _linears(layer: EncoderLayer) -> list[nn.Linear]:
    feed_forward = (layer.feed_forward[0], layer.feed_forward[3])
    return cast(list[nn.Linear], [layer.query, layer.key, layer.value, layer.mix, *feed_forward])


def _numpy(tensor: Tensor) -> Floats:
    return cast(Floats, tensor.detach().numpy())


def _empty(*shape: int) -> Floats:
    """torch aligns memory to cache lines, numpy does not; vectors across two lines take twice as long to load."""
    return _numpy(torch.empty(shape))


def _zeros(*shape: int) -> Floats:
    return _numpy(torch.zeros(shape))


def _flat(array: NDArray[Any]) -> Floats:
    out = _empty(array.size)
    out[:] = array.reshape(-1)
    return out


def _layer_weights(layer: EncoderLayer) -> LayerWeights:
    query, key, value, mix, first, second = (_numpy(linear.weight) for linear in _linears(layer))
    query_bias, key_bias, value_bias, mix_bias, first_bias, second_bias = (
        _numpy(linear.bias) for linear in _linears(layer)
    )
    to_powers = np.float32(np.log2(np.e) / np.sqrt(HEAD))
    key_value = np.concatenate([key, value])
    parts = {
        "query": query * to_powers,
        "query_bias": query_bias * to_powers,
        "query_rows": query.T * to_powers,
        "key_value": key_value,
        "key_value_bias": np.concatenate([key_bias, value_bias]),
        "key_value_rows": key_value.T,
        "projections_back": np.concatenate([query, key_value]).T,
        "mix": mix,
        "mix_bias": mix_bias,
        "mix_back": mix.T,
        "first": first,
        "first_bias": first_bias,
        "first_back": first.T,
        "second": second,
        "second_bias": second_bias,
        "second_back": second.T,
    }
    return LayerWeights(**{name: _flat(part) for name, part in parts.items()})


def _dropout(probability: float, seed: int, stream: int) -> Dropout:
    threshold = min(round((1 - probability) * 2**32), 2**32 - 1) if probability else 0
    return Dropout(np.uint64(seed), stream, np.uint32(threshold), np.float32(1 / (1 - probability)))


class _Plan(NamedTuple):
    """The network as the loops read it."""

    layout: PatchLayout
    projection: Floats  # (width, patch_length), flat
    start: Floats  # (width * n_slots,) bias and position of each token, transposed and padded
    layers: list[tuple[LayerWeights, Dropout, Dropout]]  # dropout of attention, and of the feed-forward layer


def _plan(network: PatchTST, seed: int) -> _Plan:
    n_tokens, width = network.positions.shape
    n_slots = -(-n_tokens // SLOTS) * SLOTS
    real = _flat(np.arange(n_slots) < n_tokens)
    layout = PatchLayout(n_tokens, n_slots, width, network.patch_length, network.patch_stride, real)
    start = np.zeros((width, n_slots), np.float32)
    start[:, :n_tokens] = (_numpy(network.positions) + _numpy(network.projection.bias)).T
    on = 1.0 if network.training else 0.0
    layers = []
    for index, layer in enumerate(_layers(network)):
        stream = index * (layer.n_heads + 1)
        on_attention = _dropout(on * layer.attention_dropout, seed, stream)
        on_hidden = _dropout(on * layer.hidden_dropout, seed, stream + layer.n_heads)
        layers.append((_layer_weights(layer), on_attention, on_hidden))
    return _Plan(layout, _flat(_numpy(network.projection.weight)), _flat(start), layers)


def _share(n_windows: int, kernel: Callable[..., None], *arguments: Any, chunk: int = CHUNK) -> None:
    """``kernel(first, last, *arguments)`` for every chunk of windows, on as many threads as torch uses."""
    each_on_threads(
        lambda first: kernel(first, min(first + chunk, n_windows), *arguments), range(0, n_windows, chunk)
    )


# Batch normalisation


def _moments(norm: nn.BatchNorm1d, parts: Floats, n_tokens: int) -> Moments:
    """By which to normalise: in training the batch's, from each window's mean and sum of squared distances from it.

    Else the running ones, which training moves as BatchNorm1d does.
    """
    running = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    if not norm.training:
        return _numpy(running[0]).astype(np.float64), _numpy(running[1]).astype(np.float64)
    means, squares = np.split(parts.astype(np.float64), 2, axis=1)
    mean = means.mean(axis=0)
    variance = ((means - mean) ** 2).mean(axis=0) + squares.mean(axis=0) / n_tokens
    count = len(parts) * n_tokens
    n_batches = cast(Tensor, norm.num_batches_tracked).add_(1)
    share = 1 / float(n_batches) if norm.momentum is None else norm.momentum
    for kept, now in zip(running, (mean, variance * (count / (count - 1))), strict=True):
        kept.mul_(1 - share).add_(torch.from_numpy(now).float(), alpha=share)
    return mean, variance


def _scale_and_shift(norm: nn.BatchNorm1d, moments: Moments) -> tuple[Floats, Floats]:
    mean, variance = moments
    scale = _numpy(norm.weight) / np.sqrt(variance + norm.eps)
    return _flat(scale), _flat(_numpy(norm.bias) - mean * scale)


def _norm_back(
    norm: nn.BatchNorm1d, moments: Moments, sums: Floats | None = None, count: int = 1
) -> back.Norm:
    """How a gradient passes it, given the sums over the batch; without them, as if its moments were fixed."""
    mean, variance = moments
    inverse = 1 / np.sqrt(variance + norm.eps)
    by = _numpy(norm.weight) * inverse
    means = np.zeros(2 * len(by)) if sums is None else sums.sum(axis=0, dtype=np.float64) / count
    plain, product = np.split(means, 2)
    return back.Norm(*(_flat(item) for item in (mean, inverse, by, -by * inverse * product, -by * plain)))


# Forward


def _encoded(
    network: PatchTST,
    plan: _Plan,
    series: Floats,
    features: Floats,  # (n_windows, n_tokens * width) out
    *,
    whole: bool = True,  # a batch, on threads, of which all is kept; or a part of one, in this thread
) -> tuple[list[Layer], list[tuple[Moments, Moments]]]:
    """Samples to features, stage by stage."""
    n, layout = len(series), plan.layout
    size = layout.width * layout.n_slots
    tokens, parts = _empty(n, size), _empty(n, 2 * layout.width)

    def run(kernel: Callable[..., None], *arguments: Any) -> None:
        _share(n, kernel, *arguments) if whole else kernel(0, n, *arguments)

    run(kernels.embed, series, plan.projection, plan.start, layout, tokens)
    scale, shift = _flat(np.ones(layout.width)), _zeros(layout.width)
    layers: list[Layer] = []
    moments = []
    for module, fixed in zip(_layers(network), plan.layers, strict=True):
        if whole or not layers:
            heads, summed = _empty(n, size), _empty(n, size)
            softmax = _empty(n, layout.width // HEAD * 2 * layout.n_slots)
        out = _empty(n, size) if whole else tokens
        layer = Layer(*fixed, scale, shift, tokens, heads, softmax, summed, out)
        run(kernels.attend, layer, layout, parts)
        first = _moments(module.norm, parts, layout.n_tokens)
        run(kernels.transform, layer, *_scale_and_shift(module.norm, first), layout, parts)
        second = _moments(module.norm, parts, layout.n_tokens)
        scale, shift = _scale_and_shift(module.norm, second)
        tokens = out
        layers.append(layer)
        moments.append((first, second))
    run(kernels.write_features, tokens, scale, shift, layout, features)
    return layers, moments


def _predict(network: PatchTST, series: Floats) -> Floats:
    """Moments are known and dropout is off: each chunk goes through the whole network at once."""
    plan = _plan(network, 0)
    out = _empty(len(series), plan.layout.n_tokens * plan.layout.width)

    def one_chunk(first: int, last: int) -> None:
        _encoded(network, plan, series[first:last], out[first:last], whole=False)

    chunk = min(
        max(len(series) // 8, CHUNK), 4 * CHUNK
    )  # many enough that all threads end at about the same time
    _share(len(series), one_chunk, chunk=chunk)
    return out


class _Encoder(torch.autograd.Function):
    """Samples (n_windows, length) to tokens (n_windows, n_tokens * width), stage by stage."""

    @staticmethod
    def forward(ctx: Any, network: PatchTST, seed: int, series: Tensor, *parameters: Tensor) -> Tensor:
        plan = _plan(network, seed)
        layout = plan.layout
        out = _empty(len(series), layout.n_tokens * layout.width)
        layers, moments = _encoded(network, plan, _numpy(series), out)
        if any(ctx.needs_input_grad):
            ctx.network, ctx.layout, ctx.moments, ctx.fixed = network, layout, moments, not network.training
            ctx.layers = [layer[:-N_ARRAYS] for layer in layers]
            # torch lets go of what is saved this way after the backward pass, and notices changed parameters.
            large = [torch.from_numpy(array) for layer in layers for array in layer[-N_ARRAYS:]]
            ctx.save_for_backward(series, *parameters, *large)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        layout, moments, norms = ctx.layout, ctx.moments, [layer.norm for layer in _layers(ctx.network)]
        series, *saved = ctx.saved_tensors
        n, n_large = len(series), len(norms) * N_ARRAYS
        large = [_numpy(array) for array in saved[-n_large:]]
        leaving, entering = (_empty(n, layout.width * layout.n_slots) for _ in range(2))
        sums = _empty(n, 2 * layout.width)
        norm = _norm_back(norms[-1], moments[-1][1])
        features = _numpy(gradient.contiguous())
        _share(n, back.read_feature_gradients, features, large[-1], norm, layout, leaving, sums)
        found: list[Doubles] = []
        for index in reversed(range(len(norms))):
            layer = Layer(*ctx.layers[index], *large[index * N_ARRAYS : (index + 1) * N_ARRAYS])
            before = _norm_back(norms[index - 1], moments[index - 1][1])  # the first layer has no use for it
            of_layer, sums = _layer_back(
                layer, norms[index], moments[index], before, layout, leaving, entering, sums, fixed=ctx.fixed
            )
            found = of_layer + found
            leaving, entering = entering, leaving
        ends, of_series = _embed_back(ctx.network, series, leaving, ctx.needs_input_grad[2], layout)
        each = zip(ends + found, saved[:-n_large], ctx.needs_input_grad[3:], strict=True)
        gradients = [
            torch.from_numpy(array.astype(np.float32)).reshape(parameter.shape) if needed else None
            for array, parameter, needed in each
        ]
        return None, None, of_series, *gradients


# Backward


def _layer_back(
    layer: Layer,
    norm: nn.BatchNorm1d,
    moments: tuple[Moments, Moments],
    before: back.Norm,  # the normalisation that ends the layer before
    layout: PatchLayout,
    leaving: Floats,  # (n_windows, width * n_slots) the gradient of the layer's output; overwritten
    entering: Floats,  # (n_windows, width * n_slots) out: the gradient before it
    sums: Floats,  # (n_windows, 2 * width) of leaving, for the normalisation that ends the layer
    *,
    fixed: bool,
) -> tuple[list[Doubles], Floats]:
    """Gradients of the layer's parameters, and the sums of ``entering``."""
    n, width, weights = len(leaving), layout.width, layer.weights
    count = n * layout.n_tokens
    of_attention = (3 * width * width, 3 * width, width * width, width)
    of_hidden = (len(weights.first), len(weights.first_bias), len(weights.second), width)
    gradients = back.LayerGradients(*(_zeros(-(-n // CHUNK), size) for size in of_attention + of_hidden))
    second = _norm_back(norm, moments[1], None if fixed else sums, count)
    first, first_sums = _norm_back(norm, moments[0]), np.empty_like(sums)
    inputs = (*_scale_and_shift(norm, moments[0]), first, second, layout)
    _share(n, back.transform_back, layer, *inputs, leaving, entering, first_sums, gradients)
    first, next_sums = _norm_back(norm, moments[0], None if fixed else first_sums, count), np.empty_like(sums)
    _share(n, back.attend_back, layer, first, before, layout, entering, leaving, next_sums, gradients)

    summed = [gradient.sum(axis=0, dtype=np.float64) for gradient in gradients]
    projections, biases = summed[0].reshape(3, -1), summed[1].reshape(3, -1)
    pairs = [item for pair in zip(projections, biases, strict=True) for item in pair]
    norm_bias, norm_weight = np.split((sums.astype(np.float64) + first_sums).sum(axis=0), 2)
    return [*pairs, *summed[2:], norm_weight, norm_bias], next_sums


def _embed_back(
    network: PatchTST, series: Tensor, leaving: Floats, wanted: bool, layout: PatchLayout
) -> tuple[list[Doubles], Tensor | None]:
    """Gradients of the projection, its bias and the positions; and of the samples, if wanted."""
    n, n_chunks = len(series), -(-len(series) // CHUNK)
    weight = _zeros(n_chunks, layout.width * layout.patch_length)
    start = _zeros(n_chunks, layout.width * layout.n_slots)
    of_series = _empty(n if wanted else 0, series.shape[1])
    weight_back = _flat(_numpy(network.projection.weight).T)
    _share(n, back.embed_back, leaving, _numpy(series), weight_back, layout, weight, start, of_series)
    slots = start.sum(axis=0, dtype=np.float64).reshape(layout.width, layout.n_slots)
    positions = np.ascontiguousarray(slots[:, : layout.n_tokens].T)
    ends = [weight.sum(axis=0, dtype=np.float64), positions.sum(axis=0), positions]
    return ends, torch.from_numpy(of_series) if wanted else None
