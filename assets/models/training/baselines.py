"""Yardsticks on the held-out text: gzip, xz and a 5-gram model.

    python baselines.py --data DATA --seen N --out FILE.json

The 5-gram model is over tokens, with interpolated Kneser-Ney smoothing (one discount of 0.75). One counts all of the training files,
another as many tokens as the target was trained on, N, in the same mix of kinds. N-grams are kept as sorted 64-bit hashes; with some ten million of them a collision is improbable and harmless.
"""

import argparse
import gzip
import json
import lzma
import pathlib

import numpy as np
from tokenizers import Tokenizer

from train import MIX

KINDS = ("sessions", "rust", "python", "docs")
BYTES_OF_A_KIND, LONGEST = 100_000, 4096

ORDER, DISCOUNT = 5, 0.75
STEP = np.uint64(0x9E3779B97F4A7C15)


def hashes(tokens, n):
    """The hash of the n tokens that end at each position from n - 1 on; for n = 0, zeros."""
    length = len(tokens) - max(n, 1) + 1
    out = np.zeros(length, np.uint64)
    for i in range(n):
        out = (out ^ (tokens[i : i + length].astype(np.uint64) + np.uint64(1))) * STEP
        out ^= out >> np.uint64(29)
    return out


def counted(keys):
    return np.unique(keys, return_index=True, return_counts=True)


def look_up(table, values, keys):
    at = np.minimum(np.searchsorted(table, keys), len(table) - 1)
    return np.where(table[at] == keys, values[at], 0)


class FiveGram:
    def __init__(self, tokens, vocabulary):
        self.vocabulary, self.tables = vocabulary, []
        grams = {}
        for n in range(ORDER, 0, -1):
            # A unique n-gram with the position of its first occurrence, from which its parts are hashed.
            keys, first, counts = counted(hashes(tokens, n))
            if n < ORDER:  # in how many different contexts it continues
                longer = grams[n + 1]
                shifted = hashes(tokens, n)[longer + 1]
                continued, index, counts = counted(shifted)
                first = longer[index] + 1
                keys = continued
            grams[n] = first
            context = hashes(tokens, n - 1)[first] if n > 1 else np.zeros(len(first), np.uint64)
            contexts, inverse = np.unique(context, return_inverse=True)
            totals = np.bincount(inverse, weights=counts)
            followers = np.bincount(inverse)
            self.tables.insert(0, (keys, counts, contexts, totals, followers))

    def bits(self, tokens):
        """-log2 p of each token given up to four before it in `tokens`."""
        p = np.full(len(tokens), 1 / self.vocabulary)
        for n, (keys, counts, contexts, totals, followers) in enumerate(self.tables, 1):
            if len(tokens) < n:
                break
            gram = hashes(tokens, n)
            context = hashes(tokens, n - 1)[: len(gram)] if n > 1 else np.zeros(len(gram), np.uint64)
            total = look_up(contexts, totals, context)
            count = look_up(keys, counts, gram)
            lower = p[n - 1 :]
            safe = np.maximum(total, 1)
            mixed = np.maximum(count - DISCOUNT, 0) / safe + DISCOUNT * look_up(contexts, followers, context) / safe * lower
            p[n - 1 :] = np.where(total > 0, mixed, lower)
        return -np.log2(p)


def heldout(data, tokenizer):
    """The measured documents of each kind: about 100,000 bytes, each from its start and up to 4,096 tokens: (ids, bytes)."""
    documents = {kind: [] for kind in KINDS}
    for line in open(data / "heldout.jsonl"):
        document = json.loads(line)
        group = documents[document["kind"]]
        if sum(len(text) for _, text in group) < BYTES_OF_A_KIND:
            ids = tokenizer.encode(document["text"]).ids[:LONGEST]
            group.append((ids, tokenizer.decode(ids, skip_special_tokens=False).encode()))
    return documents


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=pathlib.Path, required=True)
    parser.add_argument("--seen", type=int, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    tokenizer = Tokenizer.from_file(str(args.data / "tokenizer.json"))
    files = {kind: np.fromfile(args.data / f"{kind}.bin", np.uint16) for kind in KINDS}
    five = FiveGram(np.concatenate(list(files.values())), tokenizer.get_vocab_size())
    seen = [files[kind][: int(share * args.seen)] for kind, share in MIX.items()]
    five_of_seen = FiveGram(np.concatenate(seen), tokenizer.get_vocab_size())
    end = tokenizer.token_to_id("<|endoftext|>")
    figures = {}
    for kind, documents in heldout(args.data, tokenizer).items():
        whole = b"".join(text for _, text in documents)
        bits = {
            "5-gram, all files": sum(five.bits(np.array([end, *ids]))[1:].sum() for ids, _ in documents),
            "5-gram, tokens seen": sum(five_of_seen.bits(np.array([end, *ids]))[1:].sum() for ids, _ in documents),
            "gzip -9, each document": sum(8 * len(gzip.compress(text, 9)) for _, text in documents),
            "gzip -9, one stream": 8 * len(gzip.compress(whole, 9)),
            "xz -9, each document": sum(8 * len(lzma.compress(text, preset=9)) for _, text in documents),
            "xz -9, one stream": 8 * len(lzma.compress(whole, preset=9)),
        }
        figures[kind] = {name: round(b / len(whole), 3) for name, b in bits.items()}
        figures[kind] |= {"documents": len(documents), "bytes": len(whole), "tokens": sum(len(ids) for ids, _ in documents)}
        print(kind, json.dumps(figures[kind]), flush=True)
    args.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
