"""The networks that are trained: models.h and transformer.h in Python."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Mlp(nn.Sequential):
    """Six linear layers of 2048: 25 million parameters."""

    def __init__(self):
        layers = [layer for _ in range(6) for layer in (nn.Linear(2048, 2048), nn.ReLU())]
        super().__init__(*layers[:-1])


class MnistCnn(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 20, 5)
        self.conv2 = nn.Conv2d(20, 50, 5)
        self.fc1 = nn.Linear(4 * 4 * 50, 500)
        self.fc2 = nn.Linear(500, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.conv1(x)), 2)
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def convolution(inputs, outputs, kernel, stride):
    return nn.Conv2d(inputs, outputs, kernel, stride=stride, padding=kernel // 2, bias=False)


class Bottleneck(nn.Module):
    def __init__(self, inputs, width, stride):
        super().__init__()
        self.body = nn.Sequential(
            convolution(inputs, width, 1, 1), nn.BatchNorm2d(width), nn.ReLU(),
            convolution(width, width, 3, stride), nn.BatchNorm2d(width), nn.ReLU(),
            convolution(width, 4 * width, 1, 1), nn.BatchNorm2d(4 * width))
        self.shortcut = nn.Identity()
        if stride != 1 or inputs != 4 * width:
            self.shortcut = nn.Sequential(
                convolution(inputs, 4 * width, 1, stride), nn.BatchNorm2d(4 * width))

    def forward(self, x):
        return F.relu(self.body(x) + self.shortcut(x))


class ResNet50(nn.Module):
    def __init__(self):
        super().__init__()
        layers = [convolution(3, 64, 7, 2), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        inputs = 64
        for stage, blocks in enumerate([3, 4, 6, 3]):
            width = 64 << stage
            for block in range(blocks):
                layers.append(Bottleneck(inputs, width, 2 if block == 0 and stage > 0 else 1))
                inputs = 4 * width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(2048, 1000)

    def forward(self, x):
        return self.head(self.body(x).mean((2, 3)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.wider, self.narrower = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.projections(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.attended(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + self.attention(self.before_attention(x))
        return x + self.narrower(F.gelu(self.wider(self.before_mlp(x)), approximate="tanh"))


class Transformer(nn.Module):
    """GPT-2's shape, 124 million parameters, unless another one is named: layers, width, heads, vocabulary, context."""

    def __init__(self, layers=12, width=768, heads=12, vocabulary=50257, context=1024):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.last = nn.LayerNorm(width)
        with torch.no_grad():
            for parameter in self.parameters():
                if parameter.dim() == 2:
                    parameter.normal_(0, 0.02)

    def forward(self, ids):
        x = self.tokens(ids) + self.positions.weight[:ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        # What reads the words also writes them.
        return F.linear(self.last(x), self.tokens.weight).flatten(0, 1)
