#!/usr/bin/env python3
"""Writes GGUF files: the fixtures of crates/overdrive-studies/tests/gguf/ and of
crates/overdrive-formats/tests/gguf/. Needs gguf, numpy, safetensors, sentencepiece and torch.

    python3 peers/gguf_files.py crates

Given ggml's own quantizers too, it writes encoded.npz and nothing else. That needs gguf and numpy:

    cc -O2 -shared -fPIC -I ggml/include -I ggml/src ggml/src/ggml-quants.c -o quants.so -lm \\
        -Wl,--unresolved-symbols=ignore-all
    python3 peers/gguf_files.py crates quants.so

Models are those of crates/overdrive-studies/tests/pretrained/. They are converted as
convert_hf_to_gguf.py of llama.cpp does it, with the names of the package's own table.

The file blocks.gguf has a tensor of every type with random codes, and blocks.npz has the values
that the package decodes from them. The file encoded.npz has weights, their values in Q8_0 by the
package, and the errors that ggml's own K formats have for them. The file spm.gguf has a tokenizer
of SentencePiece, and spm.json has its tokens for some texts.
"""

import ctypes
import io
import json
import os
import pathlib
import sys

import gguf
import numpy as np

Q = gguf.GGMLQuantizationType
TEXTS = ["the cat sat on the mat", " two  spaces", "Grüße, 世界!", "a\nb", ""]


def paired(weight, heads):
    """Puts Llama's rotary pairs beside each other, as LlamaModel.permute does."""
    rows = weight.shape[0] // heads // 2
    return weight.reshape(heads, 2, rows, *weight.shape[1:]).swapaxes(1, 2).reshape(weight.shape)


def tensors_of(folder, config, architecture):
    from safetensors.torch import load_file

    state = {}
    for file in sorted(folder.glob("*.safetensors")):
        state.update(load_file(file))
    heads = config.get("num_attention_heads", config.get("n_head"))
    key_heads = config.get("num_key_value_heads", heads)
    stacks = {}
    for name, tensor in state.items():
        x = tensor.float().numpy()
        if architecture == "gpt2" and any(
            name.endswith(f"{c}.weight") for c in ("c_attn", "c_proj", "c_fc")
        ):
            x = x.T.copy()
        if architecture == "llama" and "q_proj" in name:
            x = paired(x, heads)
        if architecture == "llama" and "k_proj" in name:
            x = paired(x, key_heads)
        if architecture.startswith("gemma") and name.endswith("norm.weight"):
            x = x + 1
        if ".experts." in name:
            before, _, after = name.partition(".experts.")
            index, layer, _ = after.split(".")
            stacks.setdefault(f"{before}.experts.{layer}.weight", []).append((int(index), x))
            continue
        yield name, x
    for name, parts in stacks.items():
        yield name, np.stack([x for _, x in sorted(parts, key=lambda part: part[0])])


def write_model(source, target, architecture, kind):
    config = json.loads((source / "config.json").read_text())
    writer = gguf.GGUFWriter(target, architecture)
    layers = config.get("num_hidden_layers", config.get("n_layer"))
    width = config.get("hidden_size", config.get("n_embd"))
    heads = config.get("num_attention_heads", config.get("n_head"))
    writer.add_context_length(config.get("max_position_embeddings", config.get("n_positions")))
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(config.get("intermediate_size", 4 * width))
    writer.add_head_count(heads)
    if architecture == "gpt2":
        writer.add_layer_norm_eps(config["layer_norm_epsilon"])
    else:
        rope = config["rope_parameters"]
        depth = config.get("head_dim") or width // heads
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_rope_freq_base(rope.get("full_attention", rope)["rope_theta"])
        writer.add_key_length(depth)
        writer.add_value_length(depth)
        if architecture in ("gemma2", "gemma3", "phi3"):
            writer.add_sliding_window(config["sliding_window"])
        if architecture == "gemma2":
            writer.add_attn_logit_softcapping(config["attn_logit_softcapping"])
            writer.add_final_logit_softcapping(config["final_logit_softcapping"])
        if rope.get("rope_type") == "llama3":
            writer.add_tensor("rope_freqs.weight", llama3_factors(rope, depth))
        if rope.get("rope_type") == "longrope":
            original = rope["original_max_position_embeddings"]
            long = config["max_position_embeddings"] / original
            writer.add_rope_scaling_orig_ctx_len(original)
            writer.add_rope_scaling_attn_factors((1 + np.log(long) / np.log(original)) ** 0.5)
            writer.add_rope_dimension_count(int(depth * rope["partial_rotary_factor"]))
            for name in ("long", "short"):
                factors = np.array(rope[f"{name}_factor"], dtype=np.float32)
                writer.add_tensor(f"rope_factors_{name}.weight", factors)
        if "num_local_experts" in config:
            writer.add_expert_count(config["num_local_experts"])
            writer.add_expert_used_count(config["num_experts_per_tok"])
    table = gguf.get_tensor_name_map(
        gguf.MODEL_ARCH_NAMES
        and next(a for a, n in gguf.MODEL_ARCH_NAMES.items() if n == architecture),
        layers,
    )
    for name, x in tensors_of(source, config, architecture):
        own = table.get_name(name, try_suffixes=(".weight", ".bias"))
        if x.ndim == 1:
            writer.add_tensor(own, x)
        else:
            writer.add_tensor(own, gguf.quants.quantize(x, kind), raw_dtype=kind)
    if (source / "tokenizer.json").exists() and architecture == "llama":
        add_byte_level(
            writer, json.loads((source / "tokenizer.json").read_text()), config["vocab_size"]
        )
    writer.add_eos_token_id(config["eos_token_id"])
    finish(writer)


def finish(writer):
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama3_factors(rope, depth):
    """The rotary factors of LlamaModel.generate_extra_tensors."""
    frequencies = 1 / rope["rope_theta"] ** (np.arange(0, depth, 2) / depth)
    length = 2 * np.pi / frequencies
    low = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    high = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    smooth = (rope["original_max_position_embeddings"] / length - rope["low_freq_factor"]) / (
        rope["high_freq_factor"] - rope["low_freq_factor"])
    between = 1 / ((1 - smooth) / rope["factor"] + smooth)
    factors = np.where(length < high, 1, np.where(length > low, rope["factor"], between))
    return factors.astype(np.float32)


def add_byte_level(writer, tokenizer, vocabulary):
    ids = {id: token for token, id in tokenizer["model"]["vocab"].items()}
    tokens = [ids.get(i, f"[PAD{i}]") for i in range(vocabulary)]
    kinds = [3 if i == 0 else 1 if i in ids else 5 for i in range(vocabulary)]
    merges = [m if isinstance(m, str) else " ".join(m) for m in tokenizer["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)


def write_blocks(folder):
    """Random codes; scales are small, so that numbers are finite."""
    rng = np.random.default_rng(1)
    writer = gguf.GGUFWriter(folder / "blocks.gguf", "llama")
    halves = {
        Q.Q4_0: [0],
        Q.Q4_1: [0, 2],
        Q.Q5_0: [0],
        Q.Q5_1: [0, 2],
        Q.Q8_0: [0],
        Q.Q2_K: [80, 82],
        Q.Q3_K: [108],
        Q.Q4_K: [0, 2],
        Q.Q5_K: [0, 2],
        Q.Q6_K: [208],
    }
    values = {}
    for kind, places in halves.items():
        elements, size = gguf.GGML_QUANT_SIZES[kind]
        data = rng.integers(0, 256, (2, 256 // elements, size), dtype=np.uint8)
        for place in places:
            scales = (rng.standard_normal(data.shape[:2]) * 0.1).astype(np.float16)
            data[:, :, place:place + 2] = scales[..., None].view(np.uint8)
        data = data.reshape(2, -1)
        values[kind.name] = gguf.quants.dequantize(data, kind)
        writer.add_tensor(kind.name, data, raw_dtype=kind)
    finish(writer)
    np.savez_compressed(folder / "blocks.npz", **values)


def write_encoded(folder, library):
    """Weights of several distributions, with blocks of zeros, of one sign and of one value."""
    rng = np.random.default_rng(11)
    x = np.stack([
        rng.standard_normal(256) * 0.02,
        rng.laplace(size=256) * 0.05,
        rng.random(256) + 1,
        np.repeat([0, -0.5, 0.25, -3, 0, 1e-3, 0.1, 0.1], 32) * np.repeat([1, -1], 128),
    ]).astype(np.float32)
    values = {"x": x, "Q8_0": gguf.quants.dequantize(gguf.quants.quantize(x, Q.Q8_0), Q.Q8_0)}
    # Lazy: the file asks for parts of ggml that are not there.
    library = ctypes.CDLL(library, mode=os.RTLD_LAZY)
    for kind in (Q.Q4_K, Q.Q5_K, Q.Q6_K):
        encode = getattr(library, f"quantize_row_{kind.name[:2].lower()}_K_ref")
        _, size = gguf.GGML_QUANT_SIZES[kind]
        blocks = np.zeros((len(x), size), np.uint8)
        pointers = (array.ctypes.data_as(ctypes.c_void_p) for array in (x, blocks))
        encode(*pointers, ctypes.c_int64(x.size))
        errors = ((gguf.quants.dequantize(blocks, kind) - x) ** 2).mean(axis=1) ** 0.5
        values[kind.name] = errors.astype(np.float32)
    np.savez_compressed(folder / "encoded.npz", **values)


def write_spm(folder):
    import sentencepiece

    text = [
        "the cat sat on the mat and the rat sat there",
        "that hat is on the mat",
        "Grüße and more",
    ] * 20
    model = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(text), model_writer=model, vocab_size=300, model_type="bpe",
        byte_fallback=True, character_coverage=1.0, normalization_rule_name="identity",
        remove_extra_whitespaces=False, hard_vocab_limit=False)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    count = pieces.vocab_size()
    kinds = [
        2 if pieces.is_unknown(i) else 3 if pieces.is_control(i) else 6 if pieces.is_byte(i) else 1
        for i in range(count)
    ]
    writer = gguf.GGUFWriter(folder / "spm.gguf", "llama")
    for add, value in ((writer.add_context_length, 64), (writer.add_embedding_length, 4),
                       (writer.add_block_count, 1), (writer.add_feed_forward_length, 4),
                       (writer.add_head_count, 2), (writer.add_layer_norm_rms_eps, 1e-5)):
        add(value)
    writer.add_tensor("token_embd.weight", np.zeros((count, 4), dtype=np.float16))
    writer.add_tokenizer_model("llama")
    writer.add_token_list([pieces.id_to_piece(i) for i in range(count)])
    writer.add_token_scores([pieces.get_score(i) for i in range(count)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(pieces.bos_id())
    writer.add_eos_token_id(pieces.eos_id())
    writer.add_unk_token_id(pieces.unk_id())
    finish(writer)
    ids = [[text, pieces.encode(text)] for text in TEXTS]
    (folder / "spm.json").write_text(json.dumps(ids, ensure_ascii=False, indent=1) + "\n")


def main():
    crates = pathlib.Path(sys.argv[1])
    if len(sys.argv) > 2:
        write_encoded(crates / "overdrive-formats/tests/gguf", pathlib.Path(sys.argv[2]).resolve())
        return
    models, studies = (
        crates / "overdrive-studies/tests/pretrained",
        crates / "overdrive-studies/tests/gguf",
    )
    formats = crates / "overdrive-formats/tests/gguf"
    studies.mkdir(exist_ok=True)
    formats.mkdir(exist_ok=True)
    for name, architecture, kind in [
        ("gemma", "gemma", Q.BF16),
        ("gemma2", "gemma2", Q.BF16),
        ("gpt2", "gpt2", Q.F32),
        ("llama", "llama", Q.BF16),
        ("mixtral", "llama", Q.BF16),
        ("phi3", "phi3", Q.BF16),
        ("qwen2", "qwen2", Q.F16),
        ("qwen3", "qwen3", Q.BF16),
    ]:
        write_model(models / name, studies / f"{name}.gguf", architecture, kind)
    write_blocks(formats)
    write_spm(formats)


main()
