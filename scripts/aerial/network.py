"""A small U-Net (Ronneberger, Fischer and Brox 2015) with dilated convolutions in the middle."""

from __future__ import annotations

from typing import Any

from mxnet.gluon import nn

WIDTH = 16


class UNet(nn.HybridBlock):
    """Map images (N, 3, H, W) to scores (N, classes, H, W); H and W must be divisible by 4.

    It returns a tuple, as the networks of GluonCV do.

    Parameters
    ----------
    classes : int
        Number of classes.
    norm_layer : type
        The norm, such as ``nn.BatchNorm`` or ``gluon_syncbn.SyncBatchNorm``.
    """

    def __init__(self, classes: int, norm_layer: Any = nn.BatchNorm) -> None:
        super().__init__()

        def convolution(channels: int, strides: int = 1, dilation: int = 1) -> Any:
            block = nn.HybridSequential()
            block.add(
                nn.Conv2D(channels, 3, strides, dilation, dilation=dilation, use_bias=False),
                norm_layer(),
                nn.Activation("relu"),
            )
            return block

        def several(*convolutions: Any) -> Any:
            block = nn.HybridSequential()
            block.add(*convolutions)
            return block

        with self.name_scope():
            self.fine = several(convolution(WIDTH), convolution(WIDTH))
            self.middle = several(convolution(3 * WIDTH, 2), convolution(3 * WIDTH))
            self.coarse = several(
                convolution(6 * WIDTH, 2),
                convolution(6 * WIDTH, dilation=2),
                convolution(6 * WIDTH, dilation=4),
                convolution(6 * WIDTH),
            )
            self.up_to_middle = several(convolution(3 * WIDTH), convolution(3 * WIDTH))
            self.up_to_fine = several(convolution(WIDTH), convolution(WIDTH))
            self.scores = nn.Conv2D(classes, 1)

    def hybrid_forward(self, F: Any, x: Any) -> Any:
        """Go down to a quarter of the sides and up again, and concatenate features of each size."""
        fine = self.fine(x)
        middle = self.middle(fine)
        coarse = self.coarse(middle)
        up = F.UpSampling(coarse, scale=2, sample_type="nearest")
        up = self.up_to_middle(F.concat(up, middle, dim=1))
        up = F.UpSampling(up, scale=2, sample_type="nearest")
        return (self.scores(self.up_to_fine(F.concat(up, fine, dim=1))),)
