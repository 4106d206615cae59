"""Our PatchTST beside the one of the transformers library: equal weights, equal numbers.

An encoder layer departs from the textbook's in two ways, both as in SSS's public code, and is compared with one
put together from transformers' own modules with just these two changes: both sums of a layer go through one batch
normalisation, where transformers has one each; the second sum adds the attention's output, where transformers adds
the normalised first sum. Windows are scaled and padded by ours before both.
"""

import pytest
import torch
from torch import nn
from torch.nn import functional

from raxss.method.backbones.patchtst import PatchTST

transformers = pytest.importorskip("transformers")
theirs = pytest.importorskip("transformers.models.patchtst.modeling_patchtst")

N_VARIATES, LENGTH, D_MODEL, N_HEADS, D_FF, N_LAYERS, N_CLASSES = 2, 96, 32, 4, 128, 2, 3
CLOSE = {"atol": 1e-5, "rtol": 1e-5}


def settings(**changes):
    """Settings with which transformers builds the same network, for windows that are padded already."""
    return transformers.PatchTSTConfig(
        **{
            "num_input_channels": N_VARIATES,
            "context_length": LENGTH + 8,  # one stride behind
            "patch_length": 16,
            "patch_stride": 8,
            "d_model": D_MODEL,
            "num_hidden_layers": N_LAYERS,
            "num_attention_heads": N_HEADS,
            "ffn_dim": D_FF,
            "norm_type": "batchnorm",
            "norm_eps": 1e-5,
            "activation_function": "gelu",
            "pre_norm": False,
            "share_embedding": True,
            "channel_attention": False,
            "scaling": None,
            "positional_encoding_type": "random",
            "use_cls_token": False,
            "do_mask_input": False,
            "num_targets": N_CLASSES,
            "attention_dropout": 0.0,
            "positional_dropout": 0.0,
            "path_dropout": 0.0,
            "ff_dropout": 0.0,
            "head_dropout": 0.0,
            **changes,
        }
    )


def shaken(network):
    """Every number moved: what starts at 0 or 1 would hide that it was not copied."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for value in network.parameters():
            value.add_(0.1 * torch.randn(value.shape, generator=generator))
        for module in network.modules():
            if isinstance(module, nn.BatchNorm1d):
                module.running_mean.normal_(0, 0.3, generator=generator)
                module.running_var.uniform_(0.5, 2.0, generator=generator)
    return network


def copy_weights(ours, encoder):
    """Our weights into their encoder; the shared normalisation of a layer into both of theirs."""
    encoder.embedder.input_embedding.load_state_dict(ours.projection.state_dict())
    with torch.no_grad():
        encoder.positional_encoder.position_enc.copy_(ours.positions)
    for mine, layer in zip(ours.encoder, encoder.layers, strict=True):
        attention = layer.self_attn
        for own, other in (
            (mine.query, attention.q_proj),
            (mine.key, attention.k_proj),
            (mine.value, attention.v_proj),
            (mine.mix, attention.out_proj),
            (mine.feed_forward[0], layer.ff[0]),
            (mine.feed_forward[3], layer.ff[3]),
            (mine.norm, layer.norm_sublayer1.batchnorm),
            (mine.norm, layer.norm_sublayer3.batchnorm),
        ):
            other.load_state_dict(own.state_dict())


class SSSLayer(nn.Module):
    """SSS's encoder layer, put together from the modules of one of transformers'."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer
        layer.norm_sublayer3 = layer.norm_sublayer1  # departure: one normalisation for both sums

    def forward(self, hidden_state, output_attentions=None):
        layer, shape = self.layer, hidden_state.shape
        tokens = hidden_state.flatten(0, 1)
        attended = layer.self_attn(tokens)[0]
        first = layer.norm_sublayer1(tokens + attended)
        second = layer.norm_sublayer3(layer.ff(first) + attended)  # departure: not `+ first`
        return (second.view(shape),)


@pytest.mark.parametrize("training", [True, False])
def test_the_whole_encoder_is_theirs_with_the_two_departures_of_sss(training):
    torch.manual_seed(3)
    ours = shaken(PatchTST(N_VARIATES, LENGTH, N_CLASSES, attention_dropout=0.0, dropout=0.0)).train(training)
    windows = torch.randn(5, N_VARIATES, LENGTH).cumsum(dim=2)
    model = theirs.PatchTSTModel(settings())
    copy_weights(ours, model.encoder)
    model.encoder.layers = nn.ModuleList(map(SSSLayer, model.encoder.layers))
    with torch.no_grad():
        padded = functional.pad(ours.revin(windows), (0, ours.n_padded), mode="replicate")
        expected = model.train(training)(past_values=padded.transpose(1, 2)).last_hidden_state
        found = ours.plain_features(windows)
    assert expected.shape == (5, N_VARIATES, 12, D_MODEL)
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected.flatten(1), **CLOSE)
    moments = model.encoder.layers[0].layer.norm_sublayer1.batchnorm.running_mean
    torch.testing.assert_close(ours.encoder[0].norm.running_mean, moments, **CLOSE)
