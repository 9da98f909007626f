"""Models of against_gloo.py: a name, a module, inputs, and how often a step is repeated."""

import torch
from torch import nn


def mlp(width, depth):
    layers = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers)


class Residual(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inside, outside, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outside), nn.ReLU(),
            nn.Conv2d(outside, outside, 3, padding=1, bias=False), nn.BatchNorm2d(outside))
        self.shortcut = nn.Identity() if stride == 1 and inside == outside else nn.Sequential(
            nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        return torch.relu(self.body(x) + self.shortcut(x))


def resnet18():
    """As torchvision's, for images of 32 x 32 pixels: 11.2 M parameters."""
    layers = [nn.Conv2d(3, 64, 3, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU()]
    inside = 64
    for outside, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        layers += [Residual(inside, outside, stride), Residual(outside, outside, 1)]
        inside = outside
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


class Gpt(nn.Module):
    """6 layers of width 192 over 256 bytes of context: 2.8 M parameters."""

    def __init__(self, width=192, depth=6, heads=6, vocabulary=256, context=256):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Parameter(torch.zeros(context, width))
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0, activation="gelu", batch_first=True,
                                       norm_first=True) for _ in range(depth))
        self.head = nn.Linear(width, vocabulary)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(context))

    def forward(self, text):
        x = self.tokens(text) + self.places[: text.size(1)]
        mask = self.mask[: text.size(1), : text.size(1)]
        for block in self.blocks:
            x = block(x, src_mask=mask, is_causal=True)
        return self.head(x)


MODELS = {
    "toy": (lambda: mlp(20, 1), lambda: torch.randn(32, 20), 50),
    "MLP, 8.5 M": (lambda: mlp(1680, 3), lambda: torch.randn(32, 1680), 2),
    "ResNet-18, 11.2 M": (resnet18, lambda: torch.randn(2, 3, 32, 32), 1),
    "GPT, 2.8 M": (Gpt, lambda: torch.randint(256, (2, 64)), 2),
}
