"""Compares model.py with logits of an independent implementation, the chunked delta rule with its definition, and C with PyTorch.

    python check.py FOLDER     FOLDER holds config.json, model.safetensors (float) and expected.safetensors (tokens, logits)
"""

import json
import pathlib
import sys

import torch
from safetensors.torch import load_file

import fused
import model as network
from train import SIZES


def rule_differs_by():
    torch.manual_seed(0)
    n, time, dim = 3, 200, 64
    q, k, v = (torch.randn(n, time, dim, dtype=torch.float64) for _ in range(3))
    k = torch.nn.functional.normalize(k + k[:, :1], dim=-1)
    log_decay, beta = -torch.rand(n, time, dtype=torch.float64), torch.rand(n, time, dtype=torch.float64)
    state = torch.randn(n, dim, dim, dtype=torch.float64)
    a, b = (f(q, k, v, log_decay, beta, state) for f in (network.delta_rule, network.delta_rule_stepwise))
    return max((x - y).abs().max().item() for x, y in zip(a, b))


def kernels_differ_by():
    """The largest relative difference of the output and of each gradient."""
    torch.manual_seed(0)
    layer = network.GatedDeltaNet(SIZES["target"])
    kernel = layer.conv1d.weight
    inputs = [torch.randn(2, 150, kernel.shape[0]), -torch.rand(2, 150, layer.v_heads), torch.rand(2, 150, layer.v_heads)]
    inputs = [x.requires_grad_() for x in inputs]
    weights = torch.randn(2, 150, layer.v_heads, layer.v_dim)
    results = []
    for out in (
        fused.DeltaRule.apply(fused.Convolution.apply(inputs[0], kernel), *inputs[1:], layer.k_heads),
        layer.mix(*inputs, {}),
    ):
        results.append([out, *torch.autograd.grad(out, [*inputs, kernel], weights)])
    return max(((a - b).abs().max() / b.abs().max()).item() for a, b in zip(*results))


def logits_differ_by(folder):
    folder = pathlib.Path(folder)
    config = json.loads((folder / "config.json").read_text())
    net = network.Model(config.get("text_config", config))
    weights = load_file(folder / "model.safetensors")
    net.load_state_dict({name.removeprefix("language_model."): w for name, w in weights.items()})
    expected = load_file(folder / "expected.safetensors")
    tokens, logits = expected["tokens"].long()[None], expected["logits"]
    cache, parts = net.new_cache(), []
    with torch.no_grad():
        full = net.logits(net(tokens))[0]
        for start in range(0, tokens.shape[1], 7):
            parts.append(net.logits(net(tokens[:, start : start + 7], cache))[0])
    return [(x - logits).abs().max().item() / logits.std().item() for x in (full, torch.cat(parts))]


if __name__ == "__main__":
    print("chunked rule against its definition:", rule_differs_by())
    print("C against PyTorch, outputs and gradients:", kernels_differ_by())
    print("logits against the expected, in standard deviations (whole, in chunks of 7):", logits_differ_by(sys.argv[1]))
