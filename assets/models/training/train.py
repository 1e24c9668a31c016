"""Trains one of the pair for a given time.

    python train.py target|draft --data DATA --out OUT --minutes N [--seed N]

The schedule follows the clock, not a count of steps: the learning rate falls to nothing over the last part of the time, and the
sequences grow with it. The target begins with half of its layers and is doubled on the way. A checkpoint is written every five
minutes; the same command continues from it, and may give another number of minutes in all, so a run can be cut short and still
end at a low rate.

Each of two processes works on one thread and on half of every batch; they meet once a step, to add up gradients.
"""

import argparse
import json
import os
import pathlib
import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

import model as network
from loss import tied_cross_entropy

COMMON = {
    "vocab_size": 6144,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": True,
    "full_attention_interval": 4,
    "max_position_embeddings": 65536,
    "rope_parameters": {"type": "default", "rope_type": "default", "rope_theta": 1000000.0, "partial_rotary_factor": 0.25},
    "head_dim": 64,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 64,
    "linear_value_head_dim": 64,
}
SIZES = {
    "target": COMMON
    | {"hidden_size": 256, "num_hidden_layers": 8, "intermediate_size": 640, "num_attention_heads": 4, "num_key_value_heads": 2}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "mtp_num_hidden_layers": 1},
    "draft": COMMON
    | {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 384, "num_attention_heads": 2, "num_key_value_heads": 1}
    | {"linear_num_key_heads": 2, "linear_num_value_heads": 2, "mtp_num_hidden_layers": 0},
}
MIX = {"sessions": 0.45, "rust": 0.27, "python": 0.17, "docs": 0.11}
LONG_MIX = {"sessions": 0.8, "rust": 0.1, "python": 0.05, "docs": 0.05}
# From which part of the time on: tokens a sequence, sequences a step and process.
PHASES = [(0.0, 1024, 2), (0.5, 1024, 4), (0.78, 4096, 1), (0.93, 12288, 1)]
PROCESSES = 2
MUON_RATE, ADAM_RATE, EMBEDDING_RATE = 0.02, 3e-3, 4e-3
WARM_UP_STEPS, DECAY_FROM, HEAD_FROM = 40, 0.5, 0.5
FIRST_LAYERS, GROW_AT = 4, 0.42
HEAD_TOKENS, HEAD_WEIGHTS, CHAIN_EVERY = 1024, (0.2, 0.12, 0.08), 4
CHECKPOINT_SECONDS = 300


class Muon(torch.optim.Optimizer):
    """Momentum whose step is the nearest semi-orthogonal matrix, by a quintic Newton-Schulz iteration.

    Each process does every other matrix; the sum of what they found, zeros elsewhere, is everyone's step.
    """

    def __init__(self, params, lr, momentum=0.95, weight_decay=0.02):
        super().__init__(params, dict(lr=lr, momentum=momentum, weight_decay=weight_decay))

    @staticmethod
    def orthogonal(g):
        x = g.bfloat16()
        if tall := x.shape[0] > x.shape[1]:
            x = x.T
        x = x / (x.norm() + 1e-7)
        for _ in range(5):
            a = x @ x.T
            x = 3.4445 * x + (-4.7750 * a + 2.0315 * a @ a) @ x
        return x.T if tall else x

    @torch.no_grad()
    def step(self):
        (group,) = self.param_groups
        trained = [p for p in group["params"] if p.grad is not None]
        flat = torch.zeros(sum(p.numel() for p in trained), dtype=torch.bfloat16)
        parts = [part.view_as(p) for part, p in zip(flat.split([p.numel() for p in trained]), trained)]
        for i, (p, part) in enumerate(zip(trained, parts)):
            state = self.state[p]
            if not state:
                state["momentum"] = torch.zeros_like(p)
            momentum = state["momentum"].lerp_(p.grad, 1 - group["momentum"])
            if i % PROCESSES == dist.get_rank():
                part.copy_(self.orthogonal(p.grad.lerp(momentum, group["momentum"])))
        dist.all_reduce(flat)
        for p, part in zip(trained, parts):
            p.mul_(1 - group["lr"] * group["weight_decay"])
            p.add_(part, alpha=-group["lr"] * max(1, p.shape[0] / p.shape[1]) ** 0.5)


def optimizers(net):
    matrices, embedding, rest = [], [], []
    for name, p in net.named_parameters():
        if "embed_tokens" in name:
            embedding.append(p)
        elif p.ndim == 2 and min(p.shape) >= 32:
            matrices.append(p)
        else:
            rest.append(p)
    adam = torch.optim.AdamW(
        [{"params": embedding, "lr": EMBEDDING_RATE}, {"params": rest, "lr": ADAM_RATE}], betas=(0.9, 0.95), weight_decay=0.0
    )
    both = [Muon(matrices, MUON_RATE), adam]
    for optimizer in both:
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return both


def grow(net, old):
    """Doubles the network, and takes the optimizers' state of what was there along."""
    net.grow()
    new = optimizers(net)
    for a, b in zip(old, new):
        b.state.update(a.state)
    return new


class Windows:
    """Random windows of the token files."""

    def __init__(self, data, seed):
        self.tokens = {kind: np.memmap(data / f"{kind}.bin", np.uint16, "r") for kind in MIX}
        self.random = np.random.default_rng(seed)

    def batch(self, number, length):
        mix = LONG_MIX if length > 2048 else MIX
        rows = []
        for kind in self.random.choice(list(mix), number, p=list(mix.values())):
            start = self.random.integers(0, len(self.tokens[kind]) - length - 1)
            rows.append(self.tokens[kind][start : start + length + 1].astype(np.int64))
        return torch.from_numpy(np.stack(rows))


def losses(net, tokens, with_head, chain):
    """Loss of the next token, and of the prediction head on a part of the batch."""
    weight = net.model.embed_tokens.weight
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with torch.autocast("cpu", torch.bfloat16):
        hidden = net(inputs)
        main = tied_cross_entropy(hidden, weight, targets)
        if not with_head or not hasattr(net, "mtp"):
            return main, None
        length = min(inputs.shape[1], HEAD_TOKENS if not chain else HEAD_TOKENS // 2)
        rows = HEAD_TOKENS // length
        hidden, ahead = hidden[:rows, :length], targets[:rows, :length]
        outputs = net.mtp(hidden, net.model.embed_tokens(ahead), 3 if chain else 1)
        head = 0.0
        for depth, (output, share) in enumerate(zip(outputs, HEAD_WEIGHTS), 1):
            # The output of depth d at i predicts the token at i + 2, and its chain began at i + 1 - d.
            wanted = F.pad(ahead[:, 1:], (0, 1), value=-1).clone()
            wanted[:, : depth - 1] = -1
            head = head + share * tied_cross_entropy(output, weight, wanted)
    return main, head


@torch.no_grad()
def validate(net, data, tokenizer_file):
    """Held-out loss in nats a token, on the first 16 windows of each kind."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    texts = {}
    for line in open(data / "heldout.jsonl"):
        d = json.loads(line)
        texts.setdefault(d["kind"], []).append(d["text"])
    result = {}
    for kind, group in texts.items():
        ids = tokenizer.encode("<|endoftext|>".join(group[:12])).ids[: 8 * 1024 + 1]
        number = (len(ids) - 1) // 1024
        tokens = torch.tensor(ids[: number * 1024 + 1])
        with torch.autocast("cpu", torch.bfloat16):
            hidden = net(tokens[:-1].view(number, 1024))
        result[kind] = round(tied_cross_entropy(hidden, net.model.embed_tokens.weight, tokens[1:]).item(), 4)
    return result


def add_up(net, spent):
    """Averages the gradients of all processes, and gives each the time that the first has spent."""
    grads = [p.grad for p in net.parameters() if p.grad is not None]
    flat = torch.cat([g.flatten() for g in grads] + [torch.tensor([spent if dist.get_rank() == 0 else 0.0])])
    dist.all_reduce(flat)
    for g, part in zip(grads, flat[:-1].split([g.numel() for g in grads])):
        g.copy_(part.view_as(g)).div_(PROCESSES)
    return flat[-1].item()


def work(rank, args):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=PROCESSES)
    torch.manual_seed(args.seed)
    config = SIZES[args.size]
    net = network.Model(config | {"num_hidden_layers": FIRST_LAYERS})
    both = optimizers(net)
    step = seen = 0
    spent = 0.0
    saved = args.out / "checkpoint.pt"
    if saved.exists():
        state = torch.load(saved)
        if state["layers"] > FIRST_LAYERS:
            both = grow(net, both)
        net.load_state_dict(state["net"])
        for optimizer, part in zip(both, state["optimizers"]):
            optimizer.load_state_dict(part)
        step, seen, spent = state["step"], state["seen"], state["spent"]
    windows = Windows(args.data, [args.seed, step, rank])
    log = open(args.out / "log.jsonl" if rank == 0 else os.devnull, "a")
    dist.barrier()

    def note(**record):
        head = {"step": step, "tokens": seen, "minutes": round(spent / 60, 2)}
        print(json.dumps(head | {k: round(v, 4) if isinstance(v, float) else v for k, v in record.items()}), file=log, flush=True)

    def save():
        if rank == 0:
            parts = [o.state_dict() for o in both]
            state = {"net": net.state_dict(), "optimizers": parts, "layers": len(net.model.layers)}
            torch.save(state | {"step": step, "seen": seen, "spent": spent}, saved.with_suffix(".new"))
            saved.with_suffix(".new").rename(saved)
            note(heldout=validate(net, args.data, args.data / "tokenizer.json"))

    budget, last_save, before, own = args.minutes * 60, spent, time.monotonic(), spent
    while spent < budget:
        done = spent / budget
        if done >= GROW_AT and len(net.model.layers) < config["num_hidden_layers"]:
            both = grow(net, both)
        _, length, number = [phase for phase in PHASES if phase[0] <= done][-1]
        rate = min(1, (step + 1) / WARM_UP_STEPS, max(0.02, (1 - done) / (1 - DECAY_FROM)))
        for optimizer in both:
            for group in optimizer.param_groups:
                group["lr"] = group["peak"] * rate
        main_loss, head_loss = losses(net, windows.batch(number, length), done >= HEAD_FROM, chain=step % CHAIN_EVERY == 0)
        (main_loss if head_loss is None else main_loss + head_loss).backward()
        now = time.monotonic()
        own, before = own + now - before, now
        spent = add_up(net, own)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for optimizer in both:
            optimizer.step()
            optimizer.zero_grad()
        step, seen = step + 1, seen + number * length * PROCESSES
        if step % 10 == 0:
            head = None if head_loss is None else head_loss.item()
            note(length=length, rate=rate, loss=main_loss.item(), head=head, norm=norm.item())
        if spent - last_save > CHECKPOINT_SECONDS:
            save()
            last_save = spent
    save()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(29500 + list(SIZES).index(args.size)), OMP_NUM_THREADS="1")
    torch.multiprocessing.spawn(work, (args,), nprocs=PROCESSES)


if __name__ == "__main__":
    main()
