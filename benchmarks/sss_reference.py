"""The training loop of the public code of SSS, written down plainly.

    series -> Dataset (one window, its series, its label) -> DataLoader -> logits -> a Python loop over the series

The contender that training.py is measured against: a DataLoader over windows, a textbook PatchTST with explicit
softmax attention, the loss by a loop over the series in the batch, eager float32, Adam, and the loss read back for
the log after every step. It follows the public code of Stochastic Sparse Sampling (Mootoo et al., arXiv 2410.06412)
in what is done and in which order; the lines are our own.
Next: training.py runs it beside raxss.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

Collated = tuple[Tensor, Tensor, Tensor]  # windows (batch, 1, length), series (batch,), labels (batch,)


class WindowDataset(Dataset[tuple[Tensor, int, float]]):
    """All windows of all series, one at a time: ``(1, length)``, the index of its series, its label."""

    def __init__(
        self,
        series: Sequence[NDArray[np.float32]],
        labels: Sequence[int],
        *,
        window_length: int,
        stride: int,
    ) -> None:
        self.series = [torch.from_numpy(item) for item in series]
        self.labels = labels
        self.window_length = window_length
        self.places = [
            (index, start)
            for index, item in enumerate(series)
            for start in range(0, len(item) - window_length + 1, stride)
        ]

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, item: int) -> tuple[Tensor, int, float]:
        index, start = self.places[item]
        window = self.series[index][start : start + self.window_length]
        return window[None], index, float(self.labels[index])


def loader_of(
    dataset: WindowDataset, *, batch_size: int, n_workers: int, seed: int
) -> DataLoader[tuple[Tensor, int, float]]:
    """Batches in random order."""
    return DataLoader(
        dataset,
        batch_size=batch_size,
        shuffle=True,
        num_workers=n_workers,
        drop_last=True,
        generator=torch.Generator().manual_seed(seed),
    )


class TextbookPatchTST(nn.Module):
    """Patches as tokens, two transformer encoder layers, one linear layer: ``(batch, 1, length)`` -> ``(batch,)``.

    34,019 parameters at a length of 1024. As in the public code, the two sums of a layer share one normalisation
    and the second adds the attention's output.
    """

    def __init__(
        self,
        window_length: int = 1024,
        *,
        patch_length: int = 16,
        patch_stride: int = 8,
        d_model: int = 32,
        n_heads: int = 4,
        d_ff: int = 128,
        n_layers: int = 2,
        dropout: float = 0.3,
    ) -> None:
        super().__init__()
        self.patch_length, self.patch_stride = patch_length, patch_stride
        n_patches = (window_length - patch_length) // patch_stride + 2
        self.gain, self.offset = nn.Parameter(torch.ones(1)), nn.Parameter(torch.zeros(1))
        self.embedding = nn.Linear(patch_length, d_model)
        self.position = nn.Parameter(torch.empty(n_patches, d_model).uniform_(-0.02, 0.02))
        self.layers = nn.ModuleList(
            TextbookLayer(d_model, n_heads, d_ff, dropout=dropout) for _ in range(n_layers)
        )
        self.output = nn.Linear(n_patches * d_model, 1)

    def forward(self, windows: Tensor) -> Tensor:
        centred = windows - windows.mean(dim=2, keepdim=True)
        deviation = torch.sqrt(windows.var(dim=2, keepdim=True, unbiased=False) + 1e-5)
        scaled = centred / deviation * self.gain + self.offset
        padded = torch.cat([scaled, scaled[:, :, -1:].repeat(1, 1, self.patch_stride)], dim=2)
        tokens = self.embedding(padded[:, 0].unfold(1, self.patch_length, self.patch_stride)) + self.position
        for layer in self.layers:
            tokens = layer(tokens)
        logits: Tensor = self.output(tokens.flatten(1))
        return logits[:, 0]


class TextbookLayer(nn.Module):
    """Multi-head attention with its scores written out, then two linear layers."""

    def __init__(self, d_model: int, n_heads: int, d_ff: int, *, dropout: float) -> None:
        super().__init__()
        self.n_heads = n_heads
        self.to_query = nn.Linear(d_model, d_model)
        self.to_key = nn.Linear(d_model, d_model)
        self.to_value = nn.Linear(d_model, d_model)
        self.to_output = nn.Linear(d_model, d_model)
        self.widen, self.narrow = nn.Linear(d_model, d_ff), nn.Linear(d_ff, d_model)
        self.attention_dropout, self.dropout = nn.Dropout(dropout), nn.Dropout(dropout)
        self.normalisation = nn.BatchNorm1d(d_model)

    def forward(self, tokens: Tensor) -> Tensor:
        n_batch, n_tokens, d_model = tokens.shape
        shape = n_batch, n_tokens, self.n_heads, d_model // self.n_heads
        query = self.to_query(tokens).view(shape).permute(0, 2, 1, 3)
        key = self.to_key(tokens).view(shape).permute(0, 2, 3, 1)
        value = self.to_value(tokens).view(shape).permute(0, 2, 1, 3)
        scores = torch.matmul(query, key) / math.sqrt(d_model // self.n_heads)
        attention = self.attention_dropout(torch.softmax(scores, dim=-1))
        heads = torch.matmul(attention, value).permute(0, 2, 1, 3).reshape(n_batch, n_tokens, d_model)
        attended = self.to_output(heads)
        hidden = self.normalise(tokens + attended)
        transformed = self.narrow(self.dropout(functional.gelu(self.widen(hidden))))
        return self.normalise(transformed + attended)

    def normalise(self, tokens: Tensor) -> Tensor:
        normalised: Tensor = self.normalisation(tokens.transpose(1, 2)).transpose(1, 2)
        return normalised


def series_loss(logits: Tensor, series: Tensor, labels: Tensor) -> Tensor:
    """Mean over the series in the batch of the cross-entropy of each one's mean probability."""
    probabilities = torch.sigmoid(logits)
    losses = []
    for index in torch.unique(series):
        mine = series == index
        losses.append(functional.binary_cross_entropy(probabilities[mine].mean(), labels[mine][0]))
    return torch.stack(losses).mean()


def train_on(
    network: TextbookPatchTST,
    optimizer: torch.optim.Optimizer,
    batches: Iterable[Collated],
    device: torch.device,
) -> list[float]:
    """One step a batch; the loss of each, read back for the log."""
    network.train()
    log = []
    for windows, series, labels in batches:
        logits = network(windows.to(device))
        loss = series_loss(logits, series.to(device), labels.to(device).float())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        log.append(loss.item())
    return log


def copy_weights(ours: nn.Module, reference: TextbookPatchTST) -> None:
    """Give the reference the weights of a `raxss.method.backbones.PatchTST` of the same sizes."""
    names = {
        "revin.gain": "gain",
        "revin.offset": "offset",
        "projection": "embedding",
        "positions": "position",
        "head": "output",
        "encoder": "layers",
        "query": "to_query",
        "key": "to_key",
        "value": "to_value",
        "mix": "to_output",
        "feed_forward.0": "widen",
        "feed_forward.3": "narrow",
        "norm": "normalisation",
    }
    state = {}
    for name, value in ours.state_dict().items():
        for old, new in names.items():
            name = f".{name}.".replace(f".{old}.", f".{new}.").strip(".")
        state[name] = value
    state = {name: value.reshape(reference.state_dict()[name].shape) for name, value in state.items()}
    reference.load_state_dict(state)
