"""Cross-entropy of a tied output layer, without keeping all logits: value and gradients are computed a slice of rows at a time."""

import torch

import fused

ROWS = 256


class TiedCrossEntropy(torch.autograd.Function):
    """Mean over the rows of `hidden` of -log p(target); rows with a target of -1 count nothing."""

    @staticmethod
    def forward(ctx, hidden, embedding, targets):
        weight = embedding.bfloat16()
        scales = (targets >= 0) / (targets >= 0).sum().clamp(min=1)
        total = torch.zeros(1)
        grad_hidden = torch.empty(hidden.shape, dtype=torch.bfloat16)
        grad_weight = torch.zeros_like(embedding)
        for start in range(0, hidden.shape[0], ROWS):
            rows = slice(start, start + ROWS)
            h = hidden[rows].bfloat16()
            grad = h @ weight.T
            fused.softmax_gradient(grad, scales[rows], targets[rows].clamp(min=0), total)
            grad_hidden[rows] = grad @ weight
            grad_weight += grad.T @ h
        ctx.save_for_backward(grad_hidden, grad_weight)
        return total[0]

    @staticmethod
    def backward(ctx, grad):
        grad_hidden, grad_weight = ctx.saved_tensors
        return grad_hidden.float() * grad, grad_weight * grad, None


def tied_cross_entropy(hidden, embedding, targets):
    with torch.autocast("cpu", enabled=False):
        return TiedCrossEntropy.apply(hidden.flatten(0, -2), embedding, targets.flatten())
