#!/usr/bin/env python3
"""Tiny random models in Hugging Face's format, with what `transformers` makes of them: the fixtures of
crates/overdrive-studies/tests/pretrained/. Needs torch, transformers and tokenizers; downloads nothing.

    python3 peers/tiny_models.py crates/overdrive-studies/tests/pretrained [NAME...]

Each folder has config.json, the weights (f32, f16 or bf16; Llama's in two shards), tokenizer.json, and expected.npz: `x` and `mask`, outputs `y` in f64 arithmetic rounded to f32, and for decoders a
`prompt` and its greedy `continuation`.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import load_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

VOCABULARY = 270
GENERATED = 12


def byte_level_tokenizer():
    """Byte-level BPE with a few merges, as GPT-2, Llama 3 and Qwen have; ids stay below the models' vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("i", "n"), ("a", "n"), ("an", "d"), ("Ġ", "and"), ("e", "r"), ("Ġ", "a")]
    words = ["<|end|>"] + alphabet + [a + b for a, b in merges]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def word_piece_tokenizer():
    """WordPiece with [CLS] and [SEP], as BERT has."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"] + [chr(c) for c in range(97, 123)] + ["##" + chr(c) for c in range(97, 123)]
    words += ["the", "cat", "sat", "on", "mat", "##s", "."]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def scattered(model):
    """Initial weights are so small that every continuation is one token again and again; larger ones tell errors apart."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * (0.9 / parameter.shape[-1] ** 0.5))
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def write_decoder(folder, config, dtype, shard=None):
    model = scattered(transformers.AutoModelForCausalLM.from_config(config)).to(dtype)
    options = {"max_shard_size": shard} if shard else {}
    model.save_pretrained(folder, **options)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    # Read again: a model that was rounded to bf16 has rounded its rotary frequencies too.
    exact = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager").eval()
    x = torch.randint(0, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(2))
    prompt = torch.randint(0, VOCABULARY, (1, 5), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        y = exact(x).logits
        ids = prompt
        for _ in range(GENERATED):
            ids = torch.cat([ids, exact(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    np.savez_compressed(
        folder / "expected.npz", x=x.numpy().astype(np.int32), y=y.to(torch.float32).numpy(),
        prompt=prompt[0].numpy().astype(np.int32), continuation=ids[0, prompt.shape[1]:].numpy().astype(np.int32))


def write_encoder(folder, config, pooling):
    model = scattered(transformers.BertModel(config, add_pooling_layer=False)).to(torch.float16)
    model.save_pretrained(folder)
    word_piece_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    exact = transformers.BertModel.from_pretrained(folder, dtype=torch.float64, add_pooling_layer=False).eval()
    x = torch.randint(0, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(x)
    mask[1, 4:] = 0
    with torch.no_grad():
        y = exact(x, attention_mask=mask).last_hidden_state
    if pooling:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        flags = {"word_embedding_dimension": config.hidden_size, "pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}
        (folder / "1_Pooling/config.json").write_text(json.dumps(flags, indent=2) + "\n")
        modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        listed = [{"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
                  for i, (path, kind) in enumerate(modules)]
        (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n")
        weights = mask.unsqueeze(-1).to(y.dtype)
        y = torch.nn.functional.normalize((y * weights).sum(1) / weights.sum(1), dim=1)
    np.savez_compressed(folder / "expected.npz", x=x.numpy().astype(np.int32), mask=mask.numpy().astype(np.int32),
                        y=y.to(torch.float32).numpy())


def write_pytorch(folder, of, shards):
    """The weights of the folder `of` in files of torch.save, in one file every second tensor as f64."""
    folder.mkdir(exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copy(of / name, folder / name)
    tensors = list(load_file(of / "model.safetensors").items())
    if not shards:
        exact = {name: x.double() if i % 2 else x for i, (name, x) in enumerate(tensors)}
        torch.save(exact, folder / "pytorch_model.bin")
        return
    half, map_of = len(tensors) // 2, {}
    for index, part in enumerate((tensors[:half], tensors[half:])):
        name = f"pytorch_model-{index + 1:05}-of-00002.bin"
        torch.save(dict(part), folder / name, _use_new_zipfile_serialization=False)
        map_of.update({tensor: name for tensor, _ in part})
    index = json.dumps({"metadata": {}, "weight_map": map_of}, indent=2)
    (folder / "pytorch_model.bin.index.json").write_text(index + "\n")


def write_all(root, wanted):
    torch.manual_seed(0)
    common = dict(vocab_size=VOCABULARY, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
                  num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
                  bos_token_id=0, eos_token_id=0)
    gpt2 = dict(vocab_size=VOCABULARY, n_positions=64, n_embd=16, n_layer=2, n_head=4,
                bos_token_id=0, eos_token_id=0)
    stretched = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0,
                 "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                 "original_max_position_embeddings": 16}
    # The beginning of a sequence is longer than what the angles were learnt from, and the ramp has
    # channels on both sides.
    longer = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
              "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
    # Three of four channels are turned, each pair by a factor of its own.
    longrope = {"rope_type": "longrope", "rope_theta": 10000.0, "partial_rotary_factor": 0.75,
                "short_factor": [1.0, 1.3, 1.7], "long_factor": [2.0, 3.0, 4.0]}
    tied = dict(tie_word_embeddings=True)
    wide = dict(common, hidden_size=32)
    f16, bf16, f32 = torch.float16, torch.bfloat16, torch.float32
    decoders = {
        "gpt2": (lambda: transformers.GPT2Config(**gpt2), f32),
        "llama": (lambda: transformers.LlamaConfig(
            **common, tie_word_embeddings=False, rope_parameters=stretched), bf16, "20KB"),
        "mistral": (lambda: transformers.MistralConfig(
            **common, head_dim=6, sliding_window=3), bf16),
        "mixtral": (lambda: transformers.MixtralConfig(
            **dict(common, intermediate_size=8), **tied, num_local_experts=3,
            num_experts_per_tok=2), bf16),
        "qwen2": (lambda: transformers.Qwen2Config(**common, **tied), f16),
        # The first block sees everything, the second a window.
        "qwen2_window": (lambda: transformers.Qwen2Config(
            **common, use_sliding_window=True, sliding_window=4,
            max_window_layers=1), f16),
        "yarn": (lambda: transformers.Qwen2Config(**wide, **tied, rope_parameters=longer), f16),
        "qwen3": (lambda: transformers.Qwen3Config(**common, **tied, head_dim=8), bf16),
        "qwen3_moe": (lambda: transformers.Qwen3MoeConfig(
            **common, **tied, head_dim=8, num_experts=4, num_experts_per_tok=2,
            moe_intermediate_size=8, decoder_sparse_step=2, norm_topk_prob=False), bf16),
        "phi3": (lambda: transformers.Phi3Config(
            **dict(common, num_attention_heads=2, num_key_value_heads=1), **tied, pad_token_id=0,
            sliding_window=6,
            original_max_position_embeddings=48, rope_parameters=longrope), bf16),
        "gemma": (lambda: transformers.GemmaConfig(**common, head_dim=8, pad_token_id=0), bf16),
        "gemma2": (lambda: transformers.Gemma2Config(
            **common, head_dim=8, pad_token_id=0, sliding_window=3, query_pre_attn_scalar=8,
            attn_logit_softcapping=2.0, final_logit_softcapping=3.0), bf16),
        "gemma3": (lambda: transformers.Gemma3TextConfig(
            **common, head_dim=8, pad_token_id=0, sliding_window=3, query_pre_attn_scalar=12,
            layer_types=["sliding_attention", "full_attention"]), bf16),
    }
    bert = dict(vocab_size=VOCABULARY, hidden_size=16, num_hidden_layers=2, num_attention_heads=4,
                intermediate_size=24, max_position_embeddings=32)
    encoders = {"bert": False, "sentence": True}
    for name, (config, *how) in decoders.items():
        if not wanted or name in wanted:
            write_decoder(root / name, config(), *how)
    for name, pooling in encoders.items():
        if not wanted or name in wanted:
            write_encoder(root / name, transformers.BertConfig(**bert), pooling=pooling)
    for name in ("pytorch", "pytorch_shards"):
        if not wanted or name in wanted:
            write_pytorch(root / name, root / "sentence", shards=name == "pytorch_shards")


if __name__ == "__main__":
    write_all(pathlib.Path(sys.argv[1]), sys.argv[2:])
