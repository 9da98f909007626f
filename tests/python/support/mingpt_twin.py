"""The tutorial's GPT in PyTorch, and its training, as far as tests compare with it.

Written after pytorch/examples distributed/minGPT-ddp, with a mask that hides later positions.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.c_proj = nn.Linear(n_embd, n_embd)
        self.register_buffer("mask", torch.ones(block_size, block_size).tril()[None, None])
        self.attn = nn.MultiheadAttention(n_embd, n_head, batch_first=True)

    def forward(self, x):
        length = x.size(1)
        hidden = self.mask[0, 0, :length, :length] == 0
        return self.c_proj(self.attn(x, x, x, attn_mask=hidden, need_weights=False)[0])


class Block(nn.Module):
    def __init__(self, n_embd, n_head, block_size):
        super().__init__()
        self.ln1 = nn.LayerNorm(n_embd)
        self.ln2 = nn.LayerNorm(n_embd)
        self.attn = Attention(n_embd, n_head, block_size)
        self.mlp = nn.Sequential(
            nn.Linear(n_embd, 4 * n_embd), nn.GELU(), nn.Linear(4 * n_embd, n_embd)
        )

    def forward(self, x):
        x = x + self.attn(self.ln1(x))
        return x + self.mlp(self.ln2(x))


class Stem(nn.Module):
    def __init__(self, vocab_size, n_embd, block_size):
        super().__init__()
        self.tok_emb = nn.Embedding(vocab_size, n_embd)
        self.pos_emb = nn.Parameter(torch.zeros(1, block_size, n_embd))

    def forward(self, idx):
        return self.tok_emb(idx) + self.pos_emb[:, : idx.size(1)]


class Gpt(nn.Module):
    def __init__(self, n_layer, n_head, n_embd, vocab_size, block_size):
        super().__init__()
        self.emb_stem = Stem(vocab_size, n_embd, block_size)
        self.blocks = nn.Sequential(*[Block(n_embd, n_head, block_size) for _ in range(n_layer)])
        self.ln_f = nn.LayerNorm(n_embd)
        self.head = nn.Linear(n_embd, vocab_size, bias=False)
        self.apply(self.initialize)
        for name, parameter in self.named_parameters():
            if name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * n_layer))

    @staticmethod
    def initialize(module):
        if isinstance(module, (nn.Linear, nn.Embedding)):
            nn.init.normal_(module.weight, std=0.02)
            if getattr(module, "bias", None) is not None:
                nn.init.zeros_(module.bias)

    def logits(self, idx):
        return self.head(self.ln_f(self.blocks(self.emb_stem(idx))))

    def forward(self, idx, targets):
        logits = self.logits(idx)
        return logits, F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)


def make_optimizer(model, learning_rate):
    """AdamW with the tutorial's groups: matrices of linear layers decay, the rest does not."""
    parameters = dict(model.named_parameters())
    kept = ("bias", "pos_emb", "tok_emb.weight", "ln1.weight", "ln2.weight", "ln_f.weight")
    groups = [
        {"params": [parameters[name] for name in sorted(parameters) if name.endswith(kept) == kind],
         "weight_decay": decay}
        for kind, decay in ((False, 0.1), (True, 0.0))
    ]
    return torch.optim.AdamW(groups, lr=learning_rate, betas=(0.9, 0.95))


def train_step(model, optimizer, pieces):
    """`pieces`: [batch, block_size + 1]. Gives the logits and the loss before the step."""
    optimizer.zero_grad()
    logits, loss = model(pieces[:, :-1], pieces[:, 1:])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return logits.detach(), loss.item()
