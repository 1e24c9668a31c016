"""Calls kernels.c: the convolution and the delta rule of a layer as differentiable functions, and the softmax of the loss."""

import ctypes
import os
import pathlib
import subprocess
import tempfile

import torch

SOURCE = pathlib.Path(__file__).with_name("kernels.c")
BLOCK = 64


def build():
    path = pathlib.Path(tempfile.gettempdir()) / f"escarp-kernels-{SOURCE.stat().st_mtime_ns}.so"
    if not path.exists():
        own = path.with_suffix(f".{os.getpid()}")
        subprocess.run(["cc", "-O3", "-march=native", "-ffast-math", "-shared", "-fPIC", "-o", own, SOURCE, "-lm"], check=True)
        own.rename(path)
    return ctypes.CDLL(path)


LIBRARY = build()


def call(name, tensors, numbers):
    for t in tensors:
        assert t.is_contiguous(), name
    pointers = [ctypes.c_void_p(t.data_ptr()) for t in tensors]
    getattr(LIBRARY, name)(*pointers, *map(ctypes.c_long, numbers))


class Convolution(torch.autograd.Function):
    """silu of the causal depthwise convolution of `x` [batch, time, channels] with `kernel` [channels, taps, 1]."""

    @staticmethod
    def forward(ctx, x, kernel):
        x, w = x.contiguous(), kernel[:, :, 0].T.contiguous()
        y = torch.empty_like(x)
        call("conv_forward", (x, w, y), x.shape)
        ctx.save_for_backward(x, w)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        dx, dw = torch.zeros_like(x), torch.zeros_like(w)
        call("conv_backward", (x, w, dy.contiguous(), dx, dw), x.shape)
        return dx, dw.T[:, :, None]


class DeltaRule(torch.autograd.Function):
    """From queries, keys and values in one row a token, and the decay and rate of each head, to [batch, time, heads, 64]."""

    @staticmethod
    def forward(ctx, x, log_decay, beta, k_heads):
        x, log_decay, beta = x.contiguous(), log_decay.contiguous(), beta.contiguous()
        batch, time, heads = log_decay.shape
        ctx.sizes = (batch, time, k_heads, heads)
        out = x.new_empty(batch, time, heads, 64)
        starts = x.new_empty(batch, heads, -(-time // BLOCK), 64, 64)
        call("rule_forward", (x, log_decay, beta, out, starts), ctx.sizes)
        ctx.save_for_backward(x, log_decay, beta, starts)
        return out

    @staticmethod
    def backward(ctx, d_out):
        x, log_decay, beta, starts = ctx.saved_tensors
        dx, d_log_decay, d_beta = torch.zeros_like(x), torch.empty_like(log_decay), torch.empty_like(beta)
        call("rule_backward", (x, log_decay, beta, starts, d_out.contiguous(), dx, d_log_decay, d_beta), ctx.sizes)
        return dx, d_log_decay, d_beta, None


def softmax_gradient(logits, scales, targets, loss):
    """Turns bf16 `logits` [rows, n] into their gradient, and adds to `loss`, both of the sum of -scale * log p(target)."""
    call("softmax_gradient", (logits, scales, targets, loss), logits.shape)
