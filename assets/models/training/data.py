"""Makes the tokenizer and the token files from the corpus.

    python data.py DATA [--seed N]

reads DATA/corpus.jsonl (of corpus.py), and writes DATA/tokenizer.json, DATA/<kind>.bin (uint16 tokens of rust, python, docs and
sessions, documents separated by <|endoftext|>) and DATA/heldout.jsonl. One file in a hundred, by the hash of package and path,
is held out; held-out sessions are about held-out files only.
"""

import argparse
import collections
import hashlib
import json
import pathlib
import random

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

import sessions

VOCABULARY = 6144
CONTROL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
TEXTUAL = ["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"]
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Bytes of text to use of each kind, and in the tokenizer's sample.
AMOUNT = {"rust": 26e6, "python": 20e6, "docs": 12e6, "sessions": 42e6}
SAMPLE = {"rust": 5e6, "python": 3e6, "docs": 2e6, "sessions": 6e6}
# Shares and lengths in characters of short, medium and long sessions.
LENGTHS = [(0.4, 5_000, 10_000), (0.35, 12_000, 40_000), (0.25, 50_000, 110_000)]


def digest(document):
    return int.from_bytes(hashlib.sha256(f"{document['package']}/{document['path']}".encode()).digest()[:8], "big")


def held_out(document):
    return digest(document) % 100 == 0


def train_tokenizer(texts):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, trim_offsets=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(CONTROL + TEXTUAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=24,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in CONTROL])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in TEXTUAL])
    assert tokenizer.get_vocab_size() == VOCABULARY
    return tokenizer


def make_sessions(documents, amount, seed, mixed=False):
    """Session texts of about `amount` characters. `mixed` takes the files of one language for one package."""
    rng = random.Random(seed)
    groups = collections.defaultdict(list)
    for d in documents:
        if d["kind"] in ("rust", "python") and len(d["text"]) < 60_000:
            name = f"{'crate' if d['kind'] == 'rust' else 'package'}-1.0.0" if mixed else d["package"]
            groups[name].append((d["path"], d["text"], d["kind"]))
    names = sorted(groups)
    weights = [min(40, len(groups[n])) * (2 if groups[n][0][2] == "rust" else 1) for n in names]
    size = 0
    while size < amount:
        name = rng.choices(names, weights)[0]
        _, shortest, longest = rng.choices(LENGTHS, [share for share, *_ in LENGTHS])[0]
        text = sessions.write_session(rng.getrandbits(64), name, groups[name], rng.randint(shortest, longest))
        size += len(text)
        yield text


def plain_text(texts):
    """Without the special tokens, which BPE must not learn from."""
    for text in texts:
        for token in CONTROL + TEXTUAL:
            text = text.replace(token, "\n")
        yield text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    documents = [json.loads(line) for line in open(args.data / "corpus.jsonl")]
    documents.sort(key=digest)
    training = [d for d in documents if not held_out(d)]
    kept = [d for d in documents if held_out(d)]
    texts = {}
    for kind in ("rust", "python", "docs"):
        texts[kind], size = [], 0
        for d in training:
            if d["kind"] == kind and size < AMOUNT[kind]:
                texts[kind].append(d["text"])
                size += len(d["text"])
    texts["sessions"] = list(make_sessions(training, AMOUNT["sessions"], args.seed))

    sample = []
    for kind, amount in SAMPLE.items():
        size = 0
        for text in texts[kind]:
            if size >= amount:
                break
            sample.append(text)
            size += len(text)
    tokenizer = train_tokenizer(plain_text(sample))
    tokenizer.save(str(args.data / "tokenizer.json"))

    end = tokenizer.token_to_id("<|endoftext|>")
    rng = random.Random(args.seed)
    for kind, group in texts.items():
        rng.shuffle(group)
        ids = []
        for start in range(0, len(group), 256):
            for encoding in tokenizer.encode_batch(group[start : start + 256]):
                ids.append(np.array(encoding.ids + [end], dtype=np.uint16))
        tokens = np.concatenate(ids)
        tokens.tofile(args.data / f"{kind}.bin")
        size = sum(len(t.encode()) for t in group)
        print(kind, len(group), "documents", size, "bytes", len(tokens), "tokens", round(size / len(tokens), 3), "bytes/token")

    with open(args.data / "heldout.jsonl", "w") as out:
        for kind in ("rust", "python", "docs"):
            size = 0
            for d in kept:
                if d["kind"] == kind and size < 400_000 and len(d["text"]) < 40_000:
                    out.write(json.dumps({"kind": kind, "text": d["text"]}) + "\n")
                    size += len(d["text"])
        for text in make_sessions(kept, 1_200_000, args.seed + 1, mixed=True):
            out.write(json.dumps({"kind": "sessions", "text": text}) + "\n")


if __name__ == "__main__":
    main()
