"""The network: the text part of the `qwen3_5` architecture, in PyTorch.

Layers are gated delta nets with a short convolution, and every `full_attention_interval`-th is gated attention with partial
rotary positions. A multi-token-prediction head (`mtp`) is one more attention layer. Parameter names are those of the
checkpoint without its prefix `language_model.`; shapes and norm weights follow MLX (convolution `[channels, taps, 1]`, norms
that multiply by their weight).

`delta_rule_stepwise` is the definition of the recurrence; `delta_rule` does the same in chunks, and fused.py in C, which is what
training uses. check.py compares them.
"""

import copy

import torch
import torch.nn as nn
import torch.nn.functional as F

import fused

CHUNK = 64


class RMSNorm(nn.Module):
    def __init__(self, size, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x):
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


def linear(size_in, size_out):
    return nn.Linear(size_in, size_out, bias=False)


def rotate(x, positions, dims, theta):
    """Rotary positions on the first `dims` of the last axis, pairs at a distance of half of them. `x` is [batch, heads, time, dim]."""
    half = dims // 2
    frequency = theta ** (-torch.arange(half, dtype=torch.float32) / half)
    angle = positions.float()[:, None] * frequency
    cos, sin = angle.cos(), angle.sin()
    a, b, rest = x[..., :half], x[..., half:dims], x[..., dims:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos, rest], -1)


class Attention(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.heads, self.kv_heads, self.dim = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        rope = c["rope_parameters"]
        self.rotary, self.theta = int(self.dim * rope["partial_rotary_factor"]), rope["rope_theta"]
        width = c["hidden_size"]
        self.q_proj = linear(width, 2 * self.heads * self.dim)
        self.k_proj = linear(width, self.kv_heads * self.dim)
        self.v_proj = linear(width, self.kv_heads * self.dim)
        self.o_proj = linear(self.heads * self.dim, width)
        self.q_norm = RMSNorm(self.dim, c["rms_norm_eps"])
        self.k_norm = RMSNorm(self.dim, c["rms_norm_eps"])

    def project(self, x, positions):
        """Queries, keys and values as [batch, heads, time, dim], keys and values repeated to all heads, and the output gate."""
        batch, time, _ = x.shape
        q, gate = self.q_proj(x).view(batch, time, self.heads, 2 * self.dim).chunk(2, -1)
        q = self.q_norm(q).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(batch, time, self.kv_heads, self.dim)).transpose(1, 2)
        v = self.v_proj(x).view(batch, time, self.kv_heads, self.dim).transpose(1, 2)
        q = rotate(q, positions, self.rotary, self.theta).to(v.dtype)
        k = rotate(k, positions, self.rotary, self.theta).to(v.dtype)
        return q, k, v, gate.reshape(batch, time, -1)

    def forward(self, x, cache=None):
        start = 0 if cache is None else cache["length"]
        time = x.shape[1]
        q, k, v, gate = self.project(x, torch.arange(start, start + time))
        mask = None
        if cache is not None:
            if "k" in cache:
                k, v = torch.cat([cache["k"], k], 2), torch.cat([cache["v"], v], 2)
            cache.update(k=k, v=v, length=start + time)
            if start and time > 1:
                mask = torch.ones(time, start + time, dtype=torch.bool).tril(start)
        repeat = self.heads // self.kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None and time > 1)
        return self.o_proj(out.transpose(1, 2).flatten(2) * torch.sigmoid(gate))


def delta_rule_stepwise(q, k, v, log_decay, beta, state):
    """One token at a time. `q`, `k`, `v` are [n, time, dim], `log_decay`, `beta` [n, time], `state` [n, key dim, value dim]."""
    out = []
    for t in range(q.shape[1]):
        state = state * log_decay[:, t, None, None].exp()
        delta = beta[:, t, None] * (v[:, t] - torch.einsum("nkv,nk->nv", state, k[:, t]))
        state = state + k[:, t, :, None] * delta[:, None, :]
        out.append(torch.einsum("nkv,nk->nv", state, q[:, t]))
    return torch.stack(out, 1), state


def delta_rule(q, k, v, log_decay, beta, state):
    """The same in chunks: within one, the updates solve a unit triangular system (the WY form); between chunks goes the state."""
    n, time, dim = q.shape
    pad = -time % CHUNK
    if pad:
        q, k, v = (F.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
        log_decay, beta = F.pad(log_decay, (0, pad)), F.pad(beta, (0, pad))
    chunks = (time + pad) // CHUNK
    q, k, v = (x.reshape(n, chunks, CHUNK, -1) for x in (q, k, v))
    total = log_decay.reshape(n, chunks, CHUNK).cumsum(-1)
    beta = beta.reshape(n, chunks, CHUNK, 1)
    decay = (total[..., :, None] - total[..., None, :]).tril().exp().tril()
    system = (beta * (k @ k.transpose(-1, -2)) * decay).tril(-1)
    grown = total.exp()[..., None]
    solved = torch.linalg.solve_triangular(
        system, torch.cat([beta * v, beta * grown * k], -1), upper=False, unitriangular=True
    )
    new, from_state = solved.split([v.shape[-1], dim], -1)
    k_left = (k * (total[..., -1:] - total).exp()[..., None]).transpose(-1, -2)
    kept = total[..., -1].exp()[..., None, None]
    states, updates = [], []
    for new_c, from_state_c, kept_c, k_left_c in zip(*(x.unbind(1) for x in (new, from_state, kept, k_left))):
        states.append(state)
        update = torch.baddbmm(new_c, from_state_c, state, alpha=-1)
        state = torch.baddbmm(kept_c * state, k_left_c, update)
        updates.append(update)
    out = (q * grown) @ torch.stack(states, 1) + ((q @ k.transpose(-1, -2)) * decay) @ torch.stack(updates, 1)
    return out.reshape(n, time + pad, -1)[:, :time], state


class GatedDeltaNet(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.k_heads, self.v_heads = c["linear_num_key_heads"], c["linear_num_value_heads"]
        self.k_dim, self.v_dim = c["linear_key_head_dim"], c["linear_value_head_dim"]
        self.taps = c["linear_conv_kernel_dim"]
        keys, values, width = self.k_heads * self.k_dim, self.v_heads * self.v_dim, c["hidden_size"]
        self.in_proj_qkv = linear(width, 2 * keys + values)
        self.in_proj_z = linear(width, values)
        self.in_proj_b = linear(width, self.v_heads)
        self.in_proj_a = linear(width, self.v_heads)
        self.conv1d = nn.Module()
        self.conv1d.weight = nn.Parameter(torch.randn(2 * keys + values, self.taps, 1) * self.taps**-0.5)
        self.A_log = nn.Parameter(torch.empty(self.v_heads).uniform_(1, 16).log())
        step = torch.exp(torch.empty(self.v_heads).uniform_(-6.9, -2.3))
        self.dt_bias = nn.Parameter(step + torch.log(-torch.expm1(-step)))
        self.norm = RMSNorm(self.v_dim, c["rms_norm_eps"])
        self.out_proj = linear(values, width)

    def forward(self, x, cache=None):
        batch, time, _ = x.shape
        qkv = self.in_proj_qkv(x).float()
        z = self.in_proj_z(x).view(batch, time, self.v_heads, self.v_dim)
        log_decay = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        beta = self.in_proj_b(x).float().sigmoid()
        if cache is None and self.k_dim == self.v_dim == 64:
            out = fused.DeltaRule.apply(fused.Convolution.apply(qkv, self.conv1d.weight), log_decay, beta, self.k_heads)
        else:
            with torch.autocast("cpu", enabled=False):
                out = self.mix(qkv, log_decay, beta, {} if cache is None else cache)
        return self.out_proj((self.norm(out) * F.silu(z.float())).flatten(2))

    def mix(self, qkv, log_decay, beta, cache):
        """Convolution and delta rule, from and to the state in `cache`."""
        batch, time, channels = qkv.shape
        before = cache.get("window", qkv.new_zeros(batch, self.taps - 1, channels))
        state = cache.get("state", qkv.new_zeros(batch * self.v_heads, self.k_dim, self.v_dim))
        window = torch.cat([before, qkv], 1)
        kernel = self.conv1d.weight[:, :, 0]
        qkv = F.silu(sum(window[:, i : i + time] * kernel[:, i] for i in range(self.taps)))
        keys = self.k_heads * self.k_dim
        q, k, v = qkv.split([keys, keys, self.v_heads * self.v_dim], -1)

        def unit(y):
            y = y.view(batch, time, self.k_heads, self.k_dim)
            y = y * torch.rsqrt(y.square().sum(-1, keepdim=True) + 1e-6)
            return self.by_head(y.repeat_interleave(self.v_heads // self.k_heads, 2))

        v = self.by_head(v.view(batch, time, self.v_heads, self.v_dim))
        rule = delta_rule if time > 1 else delta_rule_stepwise
        out, state = rule(unit(q) * self.k_dim**-0.5, unit(k), v, self.by_head(log_decay), self.by_head(beta), state)
        cache.update(window=window[:, time:], state=state)
        return out.view(batch, self.v_heads, time, self.v_dim).transpose(1, 2)

    @staticmethod
    def by_head(x):
        """[batch, time, heads, …] to [batch * heads, time, …]."""
        return x.transpose(1, 2).flatten(0, 1)


class MLP(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.gate_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.up_proj = linear(c["hidden_size"], c["intermediate_size"])
        self.down_proj = linear(c["intermediate_size"], c["hidden_size"])

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, c, attention):
        super().__init__()
        if attention:
            self.self_attn = Attention(c)
        else:
            self.linear_attn = GatedDeltaNet(c)
        self.input_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.post_attention_layernorm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])
        self.mlp = MLP(c)

    def forward(self, x, cache=None):
        mixer = self.self_attn if hasattr(self, "self_attn") else self.linear_attn
        x = x + mixer(self.input_layernorm(x), cache)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.embed_tokens = nn.Embedding(c["vocab_size"], c["hidden_size"])
        interval = c["full_attention_interval"]
        self.layers = nn.ModuleList(Layer(c, (i + 1) % interval == 0) for i in range(c["num_hidden_layers"]))
        self.norm = RMSNorm(c["hidden_size"], c["rms_norm_eps"])

    def forward(self, tokens, cache=None):
        x = self.embed_tokens(tokens)
        for i, layer in enumerate(self.layers):
            x = layer(x, None if cache is None else cache[i])
        return self.norm(x)


class PredictionHead(nn.Module):
    """Predicts one token further: from the trunk's normed hidden state at position i and the token at i + 1, the token at i + 2.

    Deeper predictions put the head's own normed output in the place of the trunk's.
    """

    def __init__(self, c):
        super().__init__()
        width = c["hidden_size"]
        self.fc = linear(2 * width, width)
        self.pre_fc_norm_embedding = RMSNorm(width, c["rms_norm_eps"])
        self.pre_fc_norm_hidden = RMSNorm(width, c["rms_norm_eps"])
        self.layers = nn.ModuleList([Layer(c, True)])
        self.norm = RMSNorm(width, c["rms_norm_eps"])

    def forward(self, hidden, embedding, depths=1):
        """Normed outputs for depths 1 to `depths`. `hidden[:, i]` is of position i and `embedding[:, i]` of the token at i + 1.

        The output of depth d at i predicts the token at i + 2. As in chained drafting, a query of depth d sees entries of depth 1
        except for the last d - 1 positions before its own, which are those that the chain wrote.
        """
        layer, outputs, written = self.layers[0], [], []
        attention = layer.self_attn
        time = hidden.shape[1]
        positions = torch.arange(time)
        for depth in range(1, depths + 1):
            if depth > 1:  # the output one position earlier stands for the hidden state of this one
                hidden = F.pad(outputs[-1], (0, 0, 1, 0))[:, :-1]
            x = self.fc(torch.cat([self.pre_fc_norm_embedding(embedding), self.pre_fc_norm_hidden(hidden)], -1))
            q, k, v, gate = attention.project(layer.input_layernorm(x), positions)
            repeat = attention.heads // attention.kv_heads
            k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
            written.append((k, v))
            if depth == 1:
                mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            else:
                mixed = self.chained(q, written)
            x = x + attention.o_proj(mixed.transpose(1, 2).flatten(2) * torch.sigmoid(gate))
            x = x + layer.mlp(layer.post_attention_layernorm(x))
            outputs.append(self.norm(x))
        return outputs

    @staticmethod
    def chained(q, written):
        """Attention of the deepest entries: own and preceding diagonals from the chain, everything earlier from depth 1."""
        depth, time, scale = len(written), q.shape[2], q.shape[3] ** -0.5
        k, v = written[0]
        earlier = torch.ones(time, time, dtype=torch.bool).tril(1 - depth)
        scores = (q @ k.transpose(-1, -2)).float().mul(scale).masked_fill(~earlier, -torch.inf)
        recent = []
        for back in range(depth - 1):  # the entry `back` positions before was written at depth - back
            key = F.pad(written[depth - 1 - back][0], (0, 0, back, 0))[:, :, :time]
            score = (q * key).sum(-1, keepdim=True).float() * scale
            reachable = torch.arange(time)[:, None] >= back
            recent.append(score.masked_fill(~reachable, -torch.inf))
        weights = torch.cat([scores, *recent], -1).softmax(-1).to(v.dtype)
        mixed = weights[..., :time] @ v
        for back in range(depth - 1):
            value = F.pad(written[depth - 1 - back][1], (0, 0, back, 0))[:, :, :time]
            mixed = mixed + weights[..., time + back, None] * value
        return mixed


class Model(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.model = Trunk(config)
        if config.get("mtp_num_hidden_layers"):
            self.mtp = PredictionHead(config)
        for name, p in self.named_parameters():
            if name.endswith(("o_proj.weight", "out_proj.weight", "down_proj.weight")):
                nn.init.zeros_(p)
            elif name.endswith("embed_tokens.weight"):
                nn.init.normal_(p, std=0.03)
            elif p.ndim == 2:
                nn.init.normal_(p, std=p.shape[1] ** -0.5)

    def forward(self, tokens, cache=None):
        """The normed hidden states."""
        return self.model(tokens, cache)

    def grow(self):
        """Doubles the depth: a second stack, copied from the first, whose layers add nothing until they are trained.

        The prediction head's layer starts as the last of the first stack.
        """
        self.mtp.layers[0].load_state_dict(self.model.layers[-1].state_dict())
        for layer in copy.deepcopy(self.model.layers):
            mixer = layer.self_attn.o_proj if hasattr(layer, "self_attn") else layer.linear_attn.out_proj
            nn.init.zeros_(mixer.weight)
            nn.init.zeros_(layer.mlp.down_proj.weight)
            self.model.layers.append(layer)

    def new_cache(self):
        return [{"length": 0} for _ in self.model.layers]

    def logits(self, hidden):
        return F.linear(hidden, self.model.embed_tokens.weight).float()
