"""PatchTST on a CPU by compiled loops that never store the attention weights.

    windows (batch, n_variates, length) -> features (batch, n_variates * n_patches * d_model)

Compiled loops take the windows chunk by chunk, on as many threads as torch uses; a stage ends where batch
normalisation needs the moments of the whole batch. The backward pass computes scores, activations and dropout
masks again instead of keeping them. Sums over windows are taken per chunk and added in the order of the chunks,
so results do not depend on the number of threads.

Next: patchtst_kernels.py and patchtst_back_kernels.py have the loops.
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

if TYPE_CHECKING:
    from raxss.method.backbones.patchtst import EncoderLayer, PatchTST
    from raxss.method.backbones.patchtst_back_kernels import Norm
    from raxss.method.backbones.patchtst_parts import Dropout, LayerWeights

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]


def suits(network: PatchTST, windows: Tensor) -> bool:
    """Whether `features` gives what the plain layers would give for these windows.

    float32 on the CPU, heads of eight numbers, and sizes that fill whole vectors; no hooks or replaced layers
    that the compiled loops would pass by, nor transforms of torch that look inside. Second derivatives are an
    error of torch's.

    >>> from raxss.method.backbones import PatchTST
    >>> suits(PatchTST(1, 64, 1), torch.zeros(2, 1, 64)), suits(PatchTST(1, 64, 1).double(), torch.zeros(2, 1, 64))
    (True, False)
    """
    return (
        windows.device.type == "cpu"
        and windows.dtype == torch.float32
        and windows.ndim == 3
        and windows.numel() > 0
        and not _transformed(windows)
        and _plain_modules(network)
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


def _plain_modules(network: PatchTST) -> bool:
    from raxss.method.backbones.patchtst import EncoderLayer

    skipped = [network.projection, *network.encoder.modules()]
    if any(_hooked(module) or module.training != network.training for module in skipped):
        return False
    if type(network.projection) is not nn.Linear or any(
        type(item) is not EncoderLayer for item in network.encoder
    ):
        return False
    for layer in _layers(network):
        attention = (layer.query, layer.key, layer.value, layer.mix)
        if any(type(item) is not nn.Linear for item in attention) or type(layer.norm) is not nn.BatchNorm1d:
            return False
        if [type(item) for item in layer.feed_forward] != [nn.Linear, nn.GELU, nn.Dropout, nn.Linear]:
            return False
        if cast(nn.GELU, layer.feed_forward[1]).approximate != "none":
            return False
        if not (layer.norm.affine and layer.norm.track_running_stats):
            return False
    numbers = (*network.parameters(), *(buffer for buffer in network.buffers() if buffer.is_floating_point()))
    return all(number.dtype == torch.float32 and number.device.type == "cpu" for number in numbers)


def _hooked(module: nn.Module) -> bool:
    forward = module._forward_hooks or module._forward_pre_hooks
    return bool(forward or module._backward_hooks or module._backward_pre_hooks)


def _sizes_fit(network: PatchTST, windows: Tensor) -> bool:
    from raxss.method.backbones.patchtst_parts import COLUMNS, HEAD

    n_tokens, width = network.positions.shape
    n_samples = windows.shape[-1] + network.n_padded
    if (n_samples - network.patch_length) // network.patch_stride + 1 != n_tokens or not len(network.encoder):
        return False  # the plain layers raise
    if width % COLUMNS or network.patch_length % 4 or (network.training and len(windows) * n_tokens < 2):
        return False
    return all(
        layer.n_heads * HEAD == width
        and len(_linears(layer)[4].bias) % 4 == 0
        and 0 <= layer.attention_dropout < 1
        and 0 <= _hidden_dropout(layer) < 1
        for layer in _layers(network)
    )


def features(network: PatchTST, windows: Tensor) -> Tensor:
    """What `PatchTST.features` gives, where `suits` holds: ``(batch, n_variates * n_patches * d_model)``.

    In training, dropout takes one draw from torch's generator, and running moments move as BatchNorm1d moves them.

    >>> from raxss.method.backbones import PatchTST
    >>> features(PatchTST(1, 64, 1), torch.randn(2, 1, 64)).shape
    torch.Size([2, 256])
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


def _hidden_dropout(layer: EncoderLayer) -> float:
    return cast(nn.Dropout, layer.feed_forward[2]).p


class _Sizes(NamedTuple):
    n_windows: int
    n_tokens: int
    n_slots: int  # tokens, rounded up to whole vectors
    width: int
    patch_length: int
    patch_stride: int
    real: Floats  # (n_slots,) 1 for a token, 0 for padding

    @property
    def per_window(self) -> int:
        """Numbers that its tokens have."""
        return self.width * self.n_slots

    @property
    def n_softmax(self) -> int:
        """Numbers that attention keeps about its softmax."""
        from raxss.method.backbones.patchtst_parts import HEAD

        return self.width // HEAD * 2 * self.n_slots


def _sizes(network: PatchTST, n_windows: int) -> _Sizes:
    from raxss.method.backbones.patchtst_parts import SLOTS

    n_tokens, width = network.positions.shape
    n_slots = -(-n_tokens // SLOTS) * SLOTS
    real = _flat(np.arange(n_slots) < n_tokens)
    return _Sizes(n_windows, n_tokens, n_slots, width, network.patch_length, network.patch_stride, real)


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
    from raxss.method.backbones.patchtst_parts import HEAD, LayerWeights

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


def _start(network: PatchTST, sizes: _Sizes) -> Floats:
    """Bias and position of each token, transposed and padded: (width * n_slots,)."""
    start = np.zeros((sizes.width, sizes.n_slots), np.float32)
    start[:, : sizes.n_tokens] = (_numpy(network.positions) + _numpy(network.projection.bias)).T
    return _flat(start)


def _dropout(probability: float, seed: int, stream: int) -> Dropout:
    from raxss.method.backbones.patchtst_parts import Dropout

    threshold = min(round((1 - probability) * 2**32), 2**32 - 1) if probability else 0
    return Dropout(np.uint64(seed), stream, np.uint32(threshold), np.float32(1 / (1 - probability)))


def _dropouts(network: PatchTST, seed: int) -> list[tuple[Dropout, Dropout]]:
    """Of attention and of the feed-forward layer, for every layer."""
    on = 1.0 if network.training else 0.0
    pairs = []
    for index, layer in enumerate(_layers(network)):
        stream = index * (layer.n_heads + 1)
        attention = _dropout(on * layer.attention_dropout, seed, stream)
        pairs.append((attention, _dropout(on * _hidden_dropout(layer), seed, stream + layer.n_heads)))
    return pairs


# Chunks on threads


def _share(n_windows: int, kernel: Callable[..., None], *arguments: Any) -> None:
    """``kernel(first, last, *arguments)`` for every chunk of windows, on as many threads as torch uses."""
    from raxss.method.backbones.patchtst_parts import CHUNK

    each_on_threads(
        lambda first: kernel(first, min(first + CHUNK, n_windows), *arguments), range(0, n_windows, CHUNK)
    )


# Batch normalisation


class _Moments(NamedTuple):
    mean: Doubles  # (width,)
    variance: Doubles


def _moments_of(parts: Floats, n_tokens: int) -> _Moments:
    """Of the whole batch, from each window's mean and sum of squared distances from it."""
    means, squares = np.split(parts.astype(np.float64), 2, axis=1)
    between = ((means - means.mean(axis=0)) ** 2).mean(axis=0)
    return _Moments(means.mean(axis=0), between + squares.mean(axis=0) / n_tokens)


def _running(norm: nn.BatchNorm1d) -> _Moments:
    mean, variance = cast(Tensor, norm.running_mean), cast(Tensor, norm.running_var)
    return _Moments(_numpy(mean).astype(np.float64), _numpy(variance).astype(np.float64))


def _move(norm: nn.BatchNorm1d, moments: _Moments, count: int) -> None:
    """Running moments, as BatchNorm1d moves them."""
    n_batches = cast(Tensor, norm.num_batches_tracked).add_(1)
    share = 1 / float(n_batches) if norm.momentum is None else norm.momentum
    unbiased = moments.variance * (count / (count - 1))
    for running, now in ((norm.running_mean, moments.mean), (norm.running_var, unbiased)):
        cast(Tensor, running).mul_(1 - share).add_(torch.from_numpy(now).float(), alpha=share)


def _scale_and_shift(norm: nn.BatchNorm1d, moments: _Moments) -> tuple[Floats, Floats]:
    scale = _numpy(norm.weight) / np.sqrt(moments.variance + norm.eps)
    return _flat(scale), _flat(_numpy(norm.bias) - moments.mean * scale)


def _norm_back(norm: nn.BatchNorm1d, moments: _Moments, sums: Floats | None = None, count: int = 1) -> Norm:
    """How a gradient passes it, given the sums over the batch; without them, as if its moments were fixed."""
    from raxss.method.backbones.patchtst_back_kernels import Norm

    inverse = 1 / np.sqrt(moments.variance + norm.eps)
    by = _numpy(norm.weight) * inverse
    means = np.zeros(2 * len(by)) if sums is None else sums.sum(axis=0, dtype=np.float64) / count
    plain, product = np.split(means, 2)
    return Norm(*(_flat(item) for item in (moments.mean, inverse, by, -by * inverse * product, -by * plain)))


# Evaluation


def _predict(network: PatchTST, series: Floats) -> Floats:
    """Moments are known and dropout is off: each chunk goes through the whole network at once."""
    from raxss.method.backbones import patchtst_kernels as kernels

    sizes = _sizes(network, len(series))
    weights = [_layer_weights(layer) for layer in _layers(network)]
    norms = [_scale_and_shift(layer.norm, _running(layer.norm)) for layer in _layers(network)]
    dropouts = _dropouts(network, 0)
    projection, start = _flat(_numpy(network.projection.weight)), _start(network, sizes)
    patching = (sizes.patch_length, sizes.patch_stride, sizes.n_tokens, sizes.n_slots)
    padding = (sizes.n_tokens, sizes.real)
    out = _empty(len(series), sizes.n_tokens * sizes.width)

    def one_chunk(first: int, last: int) -> None:
        n = last - first
        tokens, heads, summed = (_empty(n, sizes.per_window) for _ in range(3))
        softmax, moments = _empty(n, sizes.n_softmax), _empty(n, 2 * sizes.width)
        kernels.embed(0, n, series[first:last], projection, start, *patching, tokens)
        norm = _unchanged(sizes.width)
        for weight, next_norm, (on_attention, on_hidden) in zip(weights, norms, dropouts, strict=True):
            results = (heads, softmax, summed, moments)
            kernels.attend(0, n, tokens, *norm, weight, on_attention, *padding, *results)
            norm = next_norm
            kernels.transform(0, n, summed, *norm, heads, weight, on_hidden, *padding, tokens, moments)
        kernels.write_features(0, n, tokens, *norm, sizes.n_tokens, sizes.n_slots, out[first:last])

    _share(len(series), one_chunk)
    return out


def _unchanged(width: int) -> tuple[Floats, Floats]:
    """Scale and shift where nothing is normalised."""
    return _flat(np.ones(width)), _zeros(width)


# Training


class _Stages(NamedTuple):
    """What a layer's backward pass needs, apart from the arrays of the batch's size."""

    weights: LayerWeights
    dropouts: tuple[Dropout, Dropout]
    norm: tuple[Floats, Floats]  # scale and shift of what enters
    first: _Moments
    second: _Moments


class _Arrays(NamedTuple):
    """And those: one row per window."""

    entering: Floats  # (n_windows, width * n_slots), tokens before scale and shift
    heads: Floats
    softmax: Floats
    summed: Floats  # what the first normalisation saw
    out: Floats  # what the second one saw


class _Encoder(torch.autograd.Function):
    """Samples (n_windows, length) to tokens (n_windows, n_tokens * width), stage by stage."""

    @staticmethod
    def forward(ctx: Any, network: PatchTST, seed: int, series: Tensor, *parameters: Tensor) -> Tensor:
        from raxss.method.backbones import patchtst_kernels as kernels

        sizes = _sizes(network, len(series))
        tokens = _empty(sizes.n_windows, sizes.per_window)
        projection, start = _flat(_numpy(network.projection.weight)), _start(network, sizes)
        patching = (sizes.patch_length, sizes.patch_stride, sizes.n_tokens, sizes.n_slots)
        _share(sizes.n_windows, kernels.embed, _numpy(series), projection, start, *patching, tokens)
        norm = _unchanged(sizes.width)
        stages, arrays = [], []
        for layer, dropouts in zip(_layers(network), _dropouts(network, seed), strict=True):
            stage, array = _forward(layer, dropouts, tokens, norm, sizes)
            stages.append(stage)
            arrays.append(array)
            tokens, norm = array.out, _scale_and_shift(layer.norm, stage.second)
        out = _empty(sizes.n_windows, sizes.n_tokens * sizes.width)
        _share(sizes.n_windows, kernels.write_features, tokens, *norm, sizes.n_tokens, sizes.n_slots, out)
        if any(ctx.needs_input_grad):
            ctx.network, ctx.sizes, ctx.stages, ctx.fixed = network, sizes, stages, not network.training
            # torch lets go of what is saved this way after the backward pass, and notices changed parameters.
            large = [torch.from_numpy(item) for array in arrays for item in array]
            ctx.save_for_backward(series, *parameters, *large)
        return torch.from_numpy(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        from raxss.method.backbones import patchtst_back_kernels as kernels

        sizes, stages, layers = ctx.sizes, ctx.stages, _layers(ctx.network)
        series, *saved = ctx.saved_tensors
        n_large = len(layers) * len(_Arrays._fields)
        parameters, large = saved[:-n_large], [_numpy(item) for item in saved[-n_large:]]
        arrays = [
            _Arrays(*large[at : at + len(_Arrays._fields)]) for at in range(0, n_large, len(_Arrays._fields))
        ]

        leaving, entering = (_empty(sizes.n_windows, sizes.per_window) for _ in range(2))
        sums = _empty(sizes.n_windows, 2 * sizes.width)
        norm = _norm_back(layers[-1].norm, stages[-1].second)
        shape = (sizes.n_tokens, sizes.n_slots)
        features = _numpy(gradient.contiguous())
        _share(
            sizes.n_windows,
            kernels.read_feature_gradients,
            features,
            arrays[-1].out,
            norm,
            *shape,
            leaving,
            sums,
        )
        found: list[Doubles] = []
        for index in reversed(range(len(layers))):
            before = _norm_back(
                layers[index - 1].norm, stages[index - 1].second
            )  # the first layer has no use for it
            of_layer, sums = _backward(
                layers[index], stages[index], arrays[index], leaving, entering, sums, before, ctx.fixed, sizes
            )
            found = of_layer + found
            leaving, entering = entering, leaving
        of_ends, of_series = _backward_to_samples(
            ctx.network, series, leaving, ctx.needs_input_grad[2], sizes
        )
        gradients = [
            torch.from_numpy(of_end.astype(np.float32)).reshape(parameter.shape) if needed else None
            for of_end, parameter, needed in zip(
                of_ends + found, parameters, ctx.needs_input_grad[3:], strict=True
            )
        ]
        return None, None, of_series, *gradients


def _forward(
    layer: EncoderLayer,
    dropouts: tuple[Dropout, Dropout],
    entering: Floats,
    norm: tuple[Floats, Floats],
    sizes: _Sizes,
) -> tuple[_Stages, _Arrays]:
    from raxss.method.backbones import patchtst_kernels as kernels

    weights = _layer_weights(layer)
    heads, summed, out = (_empty(sizes.n_windows, sizes.per_window) for _ in range(3))
    softmax, parts = _empty(sizes.n_windows, sizes.n_softmax), _empty(sizes.n_windows, 2 * sizes.width)
    padding = (sizes.n_tokens, sizes.real)
    results = (heads, softmax, summed, parts)
    _share(sizes.n_windows, kernels.attend, entering, *norm, weights, dropouts[0], *padding, *results)
    first = _moments(layer.norm, parts, sizes)
    first_norm = _scale_and_shift(layer.norm, first)
    _share(
        sizes.n_windows,
        kernels.transform,
        summed,
        *first_norm,
        heads,
        weights,
        dropouts[1],
        *padding,
        out,
        parts,
    )
    second = _moments(layer.norm, parts, sizes)
    return _Stages(weights, dropouts, norm, first, second), _Arrays(entering, heads, softmax, summed, out)


def _moments(norm: nn.BatchNorm1d, parts: Floats, sizes: _Sizes) -> _Moments:
    """By which to normalise: the batch's in training, else the running ones."""
    if not norm.training:
        return _running(norm)
    moments = _moments_of(parts, sizes.n_tokens)
    _move(norm, moments, sizes.n_windows * sizes.n_tokens)
    return moments


def _backward(
    layer: EncoderLayer,
    stages: _Stages,
    arrays: _Arrays,
    leaving: Floats,  # (n_windows, width * n_slots) the gradient of the layer's output; overwritten
    entering: Floats,  # (n_windows, width * n_slots) out: the gradient before it
    sums: Floats,  # (n_windows, 2 * width) of leaving, for the normalisation that ends the layer
    before: Norm,  # the one that ends the layer before
    fixed: bool,
    sizes: _Sizes,
) -> tuple[list[Doubles], Floats]:
    """Gradients of the layer's parameters, and the sums of ``entering``."""
    from raxss.method.backbones import patchtst_back_kernels as kernels
    from raxss.method.backbones.patchtst_parts import CHUNK

    count = sizes.n_windows * sizes.n_tokens
    weights, width = stages.weights, sizes.width
    n_chunks = -(-sizes.n_windows // CHUNK)
    of_attention = (3 * width * width, 3 * width, width * width, width)
    of_hidden = (len(weights.first), len(weights.first_bias), len(weights.second), width)
    gradients = kernels.LayerGradients(*(_zeros(n_chunks, length) for length in of_attention + of_hidden))

    second = _norm_back(layer.norm, stages.second, None if fixed else sums, count)
    first = _norm_back(layer.norm, stages.first)
    first_norm = _scale_and_shift(layer.norm, stages.first)
    first_sums = np.empty_like(sums)
    _share(
        sizes.n_windows,
        kernels.transform_back,
        *(leaving, arrays.out, second, arrays.summed, *first_norm, first),
        *(weights, stages.dropouts[1], sizes.real, entering, first_sums, gradients),
    )

    first = _norm_back(layer.norm, stages.first, None if fixed else first_sums, count)
    next_sums = np.empty_like(sums)
    _share(
        sizes.n_windows,
        kernels.attend_back,
        *(
            entering,
            arrays.summed,
            first,
            leaving,
            arrays.entering,
            *stages.norm,
            arrays.heads,
            arrays.softmax,
        ),
        *(weights, stages.dropouts[0], sizes.n_tokens, sizes.real, before, next_sums, gradients),
    )

    summed = [gradient.sum(axis=0, dtype=np.float64) for gradient in gradients]
    projections, biases = summed[0].reshape(3, -1), summed[1].reshape(3, -1)
    pairs = [item for pair in zip(projections, biases, strict=True) for item in pair]
    norm_bias, norm_weight = np.split((sums.astype(np.float64) + first_sums).sum(axis=0), 2)
    return [*pairs, *summed[2:], norm_weight, norm_bias], next_sums


def _backward_to_samples(
    network: PatchTST, series: Tensor, leaving: Floats, wanted: bool, sizes: _Sizes
) -> tuple[list[Doubles], Tensor | None]:
    """Gradients of the projection, its bias and the positions; and of the samples, if wanted."""
    from raxss.method.backbones import patchtst_back_kernels as kernels
    from raxss.method.backbones.patchtst_parts import CHUNK

    n_chunks = -(-sizes.n_windows // CHUNK)
    weight, start = _zeros(n_chunks, sizes.width * sizes.patch_length), _zeros(n_chunks, sizes.per_window)
    of_series = _empty(sizes.n_windows if wanted else 0, series.shape[1])
    back = _flat(_numpy(network.projection.weight).T)
    patching = (sizes.patch_length, sizes.patch_stride, sizes.n_tokens, sizes.n_slots)
    _share(
        sizes.n_windows,
        kernels.embed_back,
        leaving,
        _numpy(series),
        back,
        *patching,
        weight,
        start,
        of_series,
    )
    slots = start.sum(axis=0, dtype=np.float64).reshape(sizes.width, sizes.n_slots)
    positions = np.ascontiguousarray(slots[:, : sizes.n_tokens].T)
    ends = [weight.sum(axis=0, dtype=np.float64), positions.sum(axis=0), positions]
    return ends, torch.from_numpy(of_series) if wanted else None
