"""Log-ICoT on k-parity in straightforward PyTorch: the baseline of `internalize bench`.

Dense T × T attention in every layer, a mask, gates, autograd, torch's AdamW, one run at a time. It does not use the
package, and it is not slow on purpose: matrices are batched over samples, layers above the stage are not computed,
and there are no needless copies. `tests/test_bench.py` checks that its loss and gradients equal the package's.
"""

import math

import torch
from torch import Tensor, nn


class PlainTask:
    """The parity tree over a secret set: bits 0 … n − 1, then the nodes of each level, the root last."""

    def __init__(self, n: int, secret: list[int]) -> None:
        self.n, self.k = n, len(secret)
        self.T, self.L = n + self.k - 1, int(math.log2(self.k))
        self.level_end = [n + self.k - (self.k >> level) for level in range(self.L + 1)]
        below = list(secret)
        self.left: list[list[int]] = []
        self.right: list[list[int]] = []
        for level in range(1, self.L + 1):
            self.left.append(below[0::2])
            self.right.append(below[1::2])
            below = list(range(self.level_end[level - 1], self.level_end[level]))

    def complete(self, bits: Tensor) -> Tensor:
        """Return the bits, followed by the node values."""
        sequence = torch.empty(len(bits), self.T, dtype=bits.dtype)
        sequence[:, : self.n] = bits
        for level in range(self.L):
            nodes = slice(self.level_end[level], self.level_end[level + 1])
            sequence[:, nodes] = sequence[:, self.left[level]] * sequence[:, self.right[level]]
        return sequence

    def draw(self, B: int) -> Tensor:
        """Draw fresh samples."""
        return self.complete(torch.randint(0, 2, (B, self.n)) * 2.0 - 1.0)


class PlainTransformer(nn.Module):
    """Attention by position only, φ(t) = −cos(πt), and a layer's update where its gates are open."""

    mask: Tensor
    gates: Tensor

    def __init__(self, task: PlainTask) -> None:
        super().__init__()
        T, end = task.T, task.level_end
        self.task = task
        self.W = nn.ParameterList(torch.zeros(T, T) for _ in range(task.L))
        mask = torch.full((T, T), -1e9).tril()  # a position sees earlier ones …
        for level in range(1, task.L + 1):
            mask[end[level - 1] :, end[level - 1] : end[level]] = -1e9  # … and a node none of its own level
        gates = torch.zeros(task.L, T, dtype=torch.bool)
        for layer in range(task.L):
            gates[layer, end[layer] : end[layer + 1]] = True
        self.register_buffer("mask", mask)
        self.register_buffer("gates", gates)

    def forward(self, D: Tensor, layers: int) -> Tensor:
        """Return the states after ``layers`` layers."""
        H = D
        for layer in range(layers):
            A = torch.softmax(self.W[layer] + self.mask, dim=0)
            H = torch.where(self.gates[layer], -torch.cos(torch.pi * (H @ A)), H)
        return H


def stage_loss(model: PlainTransformer, sequence: Tensor, stage: int) -> Tensor:
    """Return the loss of stage 1, 2, …: nodes below its level are hidden, the others are shown and supervised."""
    task, D = model.task, sequence.clone()
    first = task.level_end[stage - 1]
    D[:, task.n : first] = 0
    error = model(D, stage)[:, first:] - sequence[:, first:]
    return error.square().sum(dim=1).mean() / 2


def stage_gradient(model: PlainTransformer, sequence: Tensor, stage: int) -> list[Tensor]:
    """Return the gradients of the stage's layers, with which Algorithm 1 takes its step on these samples."""
    return list(torch.autograd.grad(stage_loss(model, sequence, stage), list(model.W)[:stage]))


def accuracy(model: PlainTransformer, sequence: Tensor) -> float:
    """Return the share of right answers with no node shown."""
    D = sequence.clone()
    D[:, model.task.n :] = 0
    with torch.no_grad():
        return float((model(D, model.task.L)[:, -1] * sequence[:, -1] > 0).float().mean())


def train(task: PlainTask, steps: int, batch: int, eval_every: int, eval_samples: int, lr: float) -> PlainTransformer:
    """Train by AdamW through the stages, with loss and accuracy on held-out samples every ``eval_every`` steps."""
    model = PlainTransformer(task)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    held_out = task.draw(eval_samples)
    for stage in range(1, task.L + 1):
        for step in range(1, steps + 1):
            optimizer.zero_grad()
            stage_loss(model, task.draw(batch), stage).backward()
            optimizer.step()
            if step % eval_every == 0:
                with torch.no_grad():
                    stage_loss(model, held_out, stage).item()
                accuracy(model, held_out)
    return model
