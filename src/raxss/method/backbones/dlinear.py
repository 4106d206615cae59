"""DLinear: linear maps of a window's trend and of the remainder.

    windows (batch, n_variates, length) -> trend, remainder -> features (batch, n_variates * n_components)
        -> logits (batch, n_outputs)

Zeng et al., 2023, as classifier. Next: timesnet.py.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from raxss.errors import ConfigError
from raxss.method.backbones.protocol import FeatureNetwork, register_backbone
from raxss.method.backbones.sizes import check_at_least_1, check_at_most

MOST_COMPONENTS = 1024  # from here on a square map is larger than two cores, or the data, can fill


@register_backbone("dlinear")
class DLinear(FeatureNetwork):
    """Trend and remainder of each variate, each through one linear layer, added up; one linear layer over all.

    With the defaults, windows of 1024 samples, one variate and one output: 2,100,225 parameters.

    Parameters
    ----------
    average_over
        Samples in the moving average that is called the trend. Odd, so that it has a middle.
    n_components
        Numbers that each of the two layers makes of a window. By default as many as the window has samples, as
        published, up to 1024.

    Notes
    -----
    The public classifiers (Time-Series-Library and SSS) map a window to one of its own length, 2·10^8 parameters at
    10,000 samples. The network is linear from end to end, so n_variates * n_outputs components let it be every
    linear function of trend and remainder. Beyond 1024 samples we therefore keep 1024 components.

    As published, the variates share the two layers, whose weights begin as a plain mean (1 / length each), and
    beyond both ends of the window the moving average sees the first or the last value again.

    Examples
    --------
    >>> import torch
    >>> network = DLinear(6, 1024, 3)
    >>> network.features(torch.zeros(2, 6, 1024)).shape
    torch.Size([2, 6144])
    """

    capturable = True  # no step waits for the device, so it can be replayed as a CUDA graph

    def __init__(
        self,
        n_variates: int,
        window_length: int,
        n_outputs: int,
        *,
        average_over: int = 25,
        n_components: int | None = None,
    ) -> None:
        super().__init__()
        if average_over < 1 or average_over % 2 == 0:
            raise ConfigError(f"average_over must be odd and at least 1, got {average_over}.")
        check_at_least_1(window_length=window_length)
        if n_components is None:
            n_components = min(window_length, MOST_COMPONENTS)
        check_at_least_1(n_components=n_components)
        check_at_most(average_over=average_over, n_components=n_components)
        self.average_over = average_over
        self.trend = nn.Linear(window_length, n_components)
        self.remainder = nn.Linear(window_length, n_components)
        for layer in (self.trend, self.remainder):
            nn.init.constant_(layer.weight, 1 / window_length)
        self.dropout = nn.Identity()
        self.head = nn.Linear(n_variates * n_components, n_outputs)

    def features(self, windows: Tensor) -> Tensor:
        """``(batch, n_variates, length)`` -> ``(batch, n_variates * n_components)``."""
        trend = moving_average(windows, self.average_over)
        components: Tensor = self.trend(trend) + self.remainder(windows - trend)
        return components.flatten(1)


def moving_average(windows: Tensor, average_over: int) -> Tensor:
    """The mean of each sample and its neighbours; beyond the ends, the first and the last sample again."""
    half = average_over // 2
    padded = functional.pad(windows, (half, half), mode="replicate")
    return functional.avg_pool1d(padded, average_over, stride=1)
