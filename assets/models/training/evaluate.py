"""Measures an exported pair on held-out text, with the weights dequantised to float32.

    python evaluate.py --target FOLDER --draft FOLDER --data DATA --out FILE.json

Bits per byte by kind of text (baselines.py measures the same documents by other means); loss by position up to 32,768; copying
over 1,000, 4,000 and 16,000 tokens; greedy tool calls; acceptance of the prediction head's and of the draft model's tokens along
the target's own greedy text and along the held-out text.
"""

import argparse
import json
import pathlib
import random
import re
import time

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

import chat
from baselines import KINDS, heldout
from export import load

DISTANCES = (1000, 4000, 16000)


def token_bits(net, ids):
    """-log2 p of every token but the first, 512 rows of logits at a time."""
    ids = torch.tensor(ids)
    hidden = net(ids[None, :-1])[0]
    parts = [F.cross_entropy(net.logits(h), t, reduction="none") for h, t in zip(hidden.split(512), ids[1:].split(512))]
    return torch.cat(parts).double().numpy() / np.log(2)


def best(net, hidden):
    return torch.cat([net.logits(h).argmax(-1) for h in hidden.split(512)])


class Evaluation:
    def __init__(self, args):
        self.target, self.draft = load(args.target), load(args.draft)
        self.tokenizer = Tokenizer.from_file(str(args.target / "tokenizer.json"))
        self.end = self.tokenizer.token_to_id("<|endoftext|>")
        self.texts = {kind: [] for kind in KINDS}
        for line in open(args.data / "heldout.jsonl"):
            document = json.loads(line)
            self.texts[document["kind"]].append(document["text"])
        self.data = args.data

    def ids(self, text):
        return self.tokenizer.encode(text).ids

    def bits_per_byte(self):
        """Of the documents that baselines.py measures, each from its start, after <|endoftext|>."""
        result = {}
        for kind, documents in heldout(self.data, self.tokenizer).items():
            size = sum(len(text) for _, text in documents)
            result[kind] = {}
            for name, net in (("target", self.target), ("draft", self.draft)):
                bits = sum(token_bits(net, [self.end, *ids]).sum() for ids, _ in documents)
                result[kind][name] = round(bits / size, 3)
        return result

    def by_position(self):
        """Nats a token along 32,768 tokens of held-out sessions, by range of positions."""
        ids = []
        for text in self.texts["sessions"]:
            ids += [self.end, *self.ids(text)]
        result = {}
        for name, net in (("target", self.target), ("draft", self.draft)):
            bits = token_bits(net, ids[:32_769]) * np.log(2)
            edges = (0, 1024, 4096, 16384, 24576, 32768)
            result[name] = {f"{a}-{b}": round(bits[a:b].mean(), 3) for a, b in zip(edges, edges[1:])}
        return result

    # Copying

    def copy_prompt(self, distance, kind):
        """(tokens, index of the first copied token, text to copy) with the original about `distance` tokens before its copy."""
        rng = self.random
        if kind == "names":
            parts = "ab cache del ent fold gra hash in key lo map node op pre que row set tok un val wid xor yield zed".split()
            names = ["_".join(rng.sample(parts, 3)) for _ in range(12)]
            shown = "\n".join(f"- `{name}`" for name in names)
            opening = chat.turn("user", f"These names matter:\n{shown}")
            question, answer, copied = "List the names that matter, in order.", "These:\n", shown
        else:
            lines = []
            while len(lines) < 60:
                lines = rng.choice(self.texts["rust"] + self.texts["python"]).split("\n")
            first = rng.randrange(0, len(lines) - 44)
            shown = "\n".join(f"{i:>4}  {lines[i - 1]}" for i in range(first + 1, first + 41))
            opening = chat.assistant("I will read src/source.rs.", [("read_file", {"path": "src/source.rs", "first": first + 1, "last": first + 40})])
            opening += chat.result(shown)
            at = max(range(first + 3, first + 34), key=lambda i: (sum(len(x.strip()) > 12 for x in lines[i - 1 : i + 4]), rng.random()))
            copied = "\n".join(lines[at - 1 : at + 4])
            if kind == "quote":
                question, answer = f"Quote lines {at} to {at + 4} of src/source.rs.", f"Lines {at} to {at + 4} of src/source.rs:\n\n```\n"
            else:
                question = f"Please change lines {at} to {at + 4} of src/source.rs."
                first_line, _, copied = json.dumps(copied, ensure_ascii=False)[1:-1].partition("\\n")
                answer = f'<tool_call>\n{{"name": "edit_file", "arguments": {{"path": "src/source.rs", "old": "{first_line}\\n'
        system = chat.system("You are a coding agent. Quote names and lines exactly as they stand in the file.", None)
        head = self.ids(system + opening)
        tail = self.ids(chat.turn("user", question) + "<|im_start|>assistant\n" + answer)
        copy = self.ids(copied)
        filler = []
        while len(filler) < distance:
            lines = rng.choice(self.texts["rust"] + self.texts["python"]).split("\n")[:120]
            name = f"src/other{rng.randrange(100)}.rs"
            block = "\n".join(f"{i:>4}  {line}" for i, line in enumerate(lines, 1))
            filler += self.ids(chat.assistant(f"I will read {name}.", [("read_file", {"path": name})]) + chat.result(block))
        filler = filler[: max(0, distance - len(tail) - len(copy))] + self.ids("<|im_end|>\n")
        return head, filler + tail, copy

    def copying(self):
        """Share of copied tokens that are the most probable one, with the original in context and without."""
        result = {}
        for kind in ("quote", "edit", "names"):
            for distance in DISTANCES:
                right, blind, number, whole = 0, 0, 0, 0
                samples = 16 if distance < 10_000 else 6
                for _ in range(samples):
                    head, between, copy = self.copy_prompt(distance, kind)
                    for context in (head + between, between[-400:]):
                        ids = torch.tensor(context + copy)
                        hidden = self.target(ids[None])[0, len(context) - 1 : -1]
                        hits = (best(self.target, hidden) == ids[len(context) :]).sum().item()
                        if len(context) > 400:
                            right, number, whole = right + hits, number + len(copy), whole + (hits == len(copy))
                        else:
                            blind += hits
                result[f"{kind} {distance}"] = {
                    "accuracy": round(right / number, 3), "without the original": round(blind / number, 3), "whole copies": whole, "samples": samples
                }
        return result

    # Generation

    def greedy(self, prompt, limit):
        """Greedy continuation of `prompt`, up to the end of the turn."""
        cache, out = self.target.new_cache(), []
        step = torch.tensor([prompt])
        stops = {self.end, self.tokenizer.token_to_id("<|im_end|>")}
        while len(out) < limit:
            token = self.target.logits(self.target(step, cache)[:, -1]).argmax(-1).item()
            out.append(token)
            if token in stops:
                break
            step = torch.tensor([[token]])
        return out

    def tool_calls(self):
        """Replies to 50 held-out prompts whose recorded reply is a call."""
        prompts = []
        for text in self.texts["sessions"]:
            places = [m.end() for m in re.finditer(r"<\|im_start\|>assistant\n", text)]
            places = [p for p in places if "<tool_call>" in text[p:].split("<|im_end|>")[0] and p < 14_000]
            for place in self.random.sample(places, min(2, len(places))):
                prompts.append((text[:place], text[place:].split("<|im_end|>")[0]))
        prompts = prompts[:50]
        counts = dict(prompts=len(prompts), with_call=0, calls=0, closed=0, json=0, known_name=0, ended=0)
        samples = []
        for prompt, recorded in prompts:
            ids = self.greedy(self.ids(prompt), 400)
            reply = self.tokenizer.decode(ids, skip_special_tokens=False)
            bodies = reply.split("<tool_call>")[1:]
            counts["with_call"] += bool(bodies)
            counts["ended"] += reply.endswith("<|im_end|>")
            for body in bodies:
                counts["calls"] += 1
                counts["closed"] += "</tool_call>" in body
                try:
                    parsed = json.loads(body.split("</tool_call>")[0])
                    counts["json"] += isinstance(parsed["arguments"], dict)
                    counts["known_name"] += f'"name": "{parsed["name"]}"' in prompt
                except (ValueError, KeyError, TypeError):
                    pass
            if len(samples) < 4:
                samples.append({"recorded": recorded[:300], "greedy": reply[:300]})
        return counts | {"samples": samples}

    def acceptance(self):
        """Drafted tokens that a text confirms, for drafts of three: the target's own greedy text, and the held-out text itself."""
        result = {}
        for kind in KINDS:
            rows = {}
            texts = [t for t in self.texts[kind] if len(t) > 3000]
            for text in self.random.sample(texts, min(10, len(texts))):
                ids = self.ids(text)
                start = self.random.randrange(256, max(257, min(len(ids) - 96, 1500)))
                prompt = ids[:start]
                for source, more in (("greedy", self.greedy_through(prompt, 96)), ("held-out", ids[start : start + 96])):
                    for name, row in self.drafts(torch.tensor(prompt + more), start).items():
                        rows.setdefault(f"{name}, {source} text", []).append(row)
            result[kind] = {name: self.summary(group) for name, group in rows.items()}
        return result

    def drafts(self, ids, start):
        """For each position from `start` on, whether each of three drafted tokens is that of the text."""
        hidden = self.target(ids[None])
        ahead = self.target.model.embed_tokens(ids[None, 1:])
        heads = [best(self.target, h[0]) for h in self.target.mtp(hidden[:, :-1], ahead, 3)]
        drafted = best(self.draft, self.draft(ids[None])[0])
        places = range(start - 1, len(ids) - 4)  # the token at i + 1 is known, those at i + 2 … i + 4 are drafted
        return {
            "prediction head": [[bool(heads[d][i + d] == ids[i + d + 2]) for d in range(3)] for i in places],
            "draft model": [[bool(drafted[i + d + 1] == ids[i + d + 2]) for d in range(3)] for i in places],
        }

    @staticmethod
    def summary(rows):
        cycles = []
        for row in rows:
            at = 0
            while at < len(row):
                accepted = next((d for d in range(3) if not row[at][d]), 3)
                cycles.append(accepted)
                at += accepted + 1
        chained = np.cumprod(np.concatenate([np.array(row) for row in rows]), 1).astype(bool)
        before = [len(chained), chained[:, 0].sum(), chained[:, 1].sum()]
        return {
            "conditional": [round(float(chained[:, d].sum() / max(1, before[d])), 3) for d in range(3)],
            "reached": [round(float(chained[:, d].mean()), 3) for d in range(3)],
            "accepted per cycle": round(float(np.mean(cycles)), 2),
            "cycles": len(cycles),
        }

    def greedy_through(self, prompt, number):
        """Exactly `number` greedy tokens; the end of a turn or document does not stop it."""
        cache, out, step = self.target.new_cache(), [], torch.tensor([prompt])
        while len(out) < number:
            out.append(self.target.logits(self.target(step, cache)[:, -1]).argmax(-1).item())
            step = torch.tensor([[out[-1]]])
        return out


def main():
    parser = argparse.ArgumentParser()
    for name in ("target", "draft", "data", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    args = parser.parse_args()
    evaluation, figures = Evaluation(args), {}
    with torch.no_grad():
        for name in ("bits_per_byte", "acceptance", "tool_calls", "copying", "by_position"):
            evaluation.random, start = random.Random(5), time.monotonic()
            figures[name] = getattr(evaluation, name)()
            print(name, round(time.monotonic() - start), "s", json.dumps(figures[name]), flush=True)
            args.out.write_text(json.dumps(figures, indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
