"""Writes a trained network as a folder that MLX and its readers load: affine 8-bit weights in groups of 64.

    python export.py target|draft --checkpoint FILE --tokenizer FILE --out FOLDER

Every matrix, the embedding included, is quantised; norms, convolutions and the decay's parameters stay float32. `load` reads such
a folder back into the network with the weights dequantised in float32, which is what evaluate.py measures.
"""

import argparse
import json
import pathlib
import shutil

import torch
from safetensors.torch import load_file, save_file

import model as network
from data import CONTROL, TEXTUAL
from train import SIZES

PREFIX = "language_model."
GROUP, BITS = 64, 8
QUANTIZATION = {"group_size": GROUP, "bits": BITS, "mode": "affine"}


def quantize(w):
    """Packed integers, four to a word with the first in its lowest byte, and a scale and a bias for each group of a row."""
    groups = w.float().view(w.shape[0], -1, GROUP)
    low, high = groups.amin(-1, keepdim=True), groups.amax(-1, keepdim=True)
    scales = ((high - low) / (2**BITS - 1)).clamp(min=1e-6).half()
    biases = low.half()
    q = ((groups - biases.float()) / scales.float()).round().clamp(0, 2**BITS - 1).to(torch.uint8)
    return q.view(w.shape[0], -1).view(torch.uint32), scales[..., 0], biases[..., 0]


def dequantize(packed, scales, biases):
    q = packed.view(torch.uint8).view(packed.shape[0], -1, GROUP).float()
    return (q * scales.float()[..., None] + biases.float()[..., None]).flatten(1)


def tensors(net):
    out = {}
    for name, w in net.state_dict().items():
        if w.ndim == 2:
            stem = PREFIX + name.removesuffix("weight")
            out[stem + "weight"], out[stem + "scales"], out[stem + "biases"] = quantize(w)
        else:
            out[PREFIX + name] = w.float().contiguous()
    return out


def load(folder):
    """The network of an exported folder, in float32."""
    config = json.loads((pathlib.Path(folder) / "config.json").read_text())["text_config"]
    stored = load_file(pathlib.Path(folder) / "model.safetensors")
    net = network.Model(config)
    state = {}
    for name, w in stored.items():
        if name.endswith((".scales", ".biases")):
            continue
        stem = name.removesuffix("weight")
        if stem + "scales" in stored:
            w = dequantize(w, stored[stem + "scales"], stored[stem + "biases"])
        state[name.removeprefix(PREFIX)] = w
    net.load_state_dict(state)
    return net.eval()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("size", choices=SIZES)
    for name in ("checkpoint", "tokenizer", "out"):
        parser.add_argument(f"--{name}", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    net = network.Model(SIZES[args.size])
    net.load_state_dict(torch.load(args.checkpoint, map_location="cpu")["net"])
    save_file(tensors(net), args.out / "model.safetensors", metadata={"format": "mlx"})

    tokenizer = json.loads(args.tokenizer.read_text())
    ids = {token["content"]: token["id"] for token in tokenizer["added_tokens"]}
    end, ends = ids["<|endoftext|>"], [ids["<|im_end|>"], ids["<|endoftext|>"]]
    text_config = SIZES[args.size] | {
        "model_type": "qwen3_5_text",
        "hidden_act": "silu",
        "attn_output_gate": True,
        "attention_bias": False,
        "eos_token_id": ends[0],
    }
    config = {
        "architectures": ["Qwen3_5ForConditionalGeneration"],
        "model_type": "qwen3_5",
        "tie_word_embeddings": True,
        "eos_token_id": ends,
        "pad_token_id": end,
        "text_config": text_config,
        "quantization": QUANTIZATION,
        "quantization_config": QUANTIZATION,
    }
    added = {
        str(ids[t]): {"content": t, "special": t in CONTROL, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
        for t in CONTROL + TEXTUAL
    }
    tokenizer_config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "add_bos_token": False,
        "bos_token": None,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "unk_token": None,
        "errors": "replace",
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": SIZES[args.size]["max_position_embeddings"],
        "additional_special_tokens": ["<|im_start|>", "<|im_end|>"],
        "added_tokens_decoder": added,
    }
    generation = {"do_sample": False, "eos_token_id": ends, "pad_token_id": end}
    for name, value in [("config", config), ("tokenizer_config", tokenizer_config), ("generation_config", generation)]:
        (args.out / f"{name}.json").write_text(json.dumps(value, indent=1) + "\n")
    (args.out / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False, separators=(",", ":")) + "\n")
    shutil.copy(pathlib.Path(__file__).with_name("chat_template.jinja"), args.out / "chat_template.jinja")
    print(args.out, sum(f.stat().st_size for f in args.out.iterdir()), "bytes")


if __name__ == "__main__":
    main()
