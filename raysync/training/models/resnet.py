"""Residual networks for 32x32 images: He et al.'s CIFAR form, and torchvision's."""

from __future__ import annotations

from importlib import import_module

from torch import Tensor, nn
from torch.nn.functional import pad, relu


class Block(nn.Module):
    """Two 3x3 convolutions, batch-norm, and a shortcut without parameters (He et al. 2016, option
    A).
    """

    def __init__(self, channels_in: int, channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.stride = stride
        self.new_channels = channels - channels_in

    def forward(self, x: Tensor) -> Tensor:
        """Map (N, channels_in, H, W) to (N, channels, H / stride, W / stride)."""
        y = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        # every second pixel where the image is halved, and zeros for new channels
        shortcut = x[:, :, :: self.stride, :: self.stride]
        before = self.new_channels // 2
        return relu(y + pad(shortcut, (0, 0, 0, 0, before, self.new_channels - before)))


def cifar_resnet(input_shape: tuple[int, ...], classes: int, *, blocks: int) -> nn.Module:
    """Build a ResNet of 6n + 2 layers, n = `blocks` (He et al. 2016, section 4.2)."""
    layers: list[nn.Module] = [
        nn.Conv2d(input_shape[0], 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    ]
    channels_in = 16
    for channels in (16, 32, 64):
        for block in range(blocks):
            halves = block == 0 and channels > 16
            layers.append(Block(channels_in, channels, stride=2 if halves else 1))
            channels_in = channels
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))
    for module in net.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
    return net


def small_stem_resnet(input_shape: tuple[int, ...], classes: int, *, depth: int) -> nn.Module:
    """Build torchvision's ResNet with a 3x3 convolution instead of its 7x7 stem and max-pool."""
    models = import_module("torchvision.models")
    net = getattr(models, f"resnet{depth}")(weights=None, num_classes=classes)
    net.conv1 = nn.Conv2d(input_shape[0], 64, 3, padding=1, bias=False)
    nn.init.kaiming_normal_(net.conv1.weight, mode="fan_out", nonlinearity="relu")
    net.maxpool = nn.Identity()
    assert isinstance(net, nn.Module)
    return net


def resnet20(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-20 in He et al.'s CIFAR form."""
    return cifar_resnet(input_shape, classes, blocks=3)


def resnet32(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-32 in He et al.'s CIFAR form."""
    return cifar_resnet(input_shape, classes, blocks=5)


def resnet56(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-56 in He et al.'s CIFAR form."""
    return cifar_resnet(input_shape, classes, blocks=9)


def resnet110(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """ResNet-110 in He et al.'s CIFAR form."""
    return cifar_resnet(input_shape, classes, blocks=18)


def resnet18(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """torchvision's ResNet-18 with a 3x3 stem for small images."""
    return small_stem_resnet(input_shape, classes, depth=18)


def resnet50(input_shape: tuple[int, ...], classes: int) -> nn.Module:
    """torchvision's ResNet-50 with a 3x3 stem for small images."""
    return small_stem_resnet(input_shape, classes, depth=50)
