#!/usr/bin/env python3
"""Tiny random models in Hugging Face's format, with the outputs of `transformers`. They are the
fixtures of crates/overdrive-studies/tests/pretrained/. Needs torch, transformers and tokenizers;
downloads nothing.

    python3 peers/tiny_models.py crates/overdrive-studies/tests/pretrained [NAME...]

Each folder has config.json, the weights (f32, f16 or bf16; Llama's in two shards), tokenizer.json
and expected.npz. That file has `x` and `mask`, and outputs `y` in f64 arithmetic rounded to f32.
For decoders it also has a `prompt` and its greedy `continuation`.
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
    """Byte-level BPE with a few merges, as GPT-2, Llama 3 and Qwen have. Ids stay below the models'
    vocabulary."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [
        ("t", "h"),
        ("th", "e"),
        ("Ġ", "the"),
        ("i", "n"),
        ("a", "n"),
        ("an", "d"),
        ("Ġ", "and"),
        ("e", "r"),
        ("Ġ", "a"),
    ]
    words = ["<|end|>"] + alphabet + [a + b for a, b in merges]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def word_piece_tokenizer():
    """WordPiece with [CLS] and [SEP], as BERT has."""
    words = (
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        + [chr(c) for c in range(97, 123)]
        + ["##" + chr(c) for c in range(97, 123)]
    )
    words += ["the", "cat", "sat", "on", "mat", "##s", "."]
    vocabulary = {word: index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return tokenizer


def scattered(model):
    """Makes the weights larger. The initial ones are so small that every continuation is one token
    again and again; larger ones tell errors apart."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() > 1:
                parameter.copy_(
                    torch.randn(parameter.shape, generator=generator)
                    * (0.9 / parameter.shape[-1] ** 0.5)
                )
            else:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
    return model.eval()


def write_decoder(folder, config, dtype, shard=None):
    model = scattered(transformers.AutoModelForCausalLM.from_config(config)).to(dtype)
    options = {"max_shard_size": shard} if shard else {}
    model.save_pretrained(folder, **options)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    # Read again, because a model that was rounded to bf16 has rounded its rotary frequencies too.
    exact = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    x = torch.randint(0, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(2))
    prompt = torch.randint(0, VOCABULARY, (1, 5), generator=torch.Generator().manual_seed(3))
    with torch.no_grad():
        y = exact(x).logits
        ids = prompt
        for _ in range(GENERATED):
            ids = torch.cat([ids, exact(ids).logits[:, -1].argmax(-1, keepdim=True)], 1)
    np.savez_compressed(
        folder / "expected.npz",
        x=x.numpy().astype(np.int32),
        y=y.to(torch.float32).numpy(),
        prompt=prompt[0].numpy().astype(np.int32),
        continuation=ids[0, prompt.shape[1] :].numpy().astype(np.int32),
    )


def write_encoder(folder, config, pooling):
    kind = transformers.AutoModel
    whole = {} if config.model_type == "distilbert" else {"add_pooling_layer": False}
    model = scattered(kind.from_config(config, **whole)).to(torch.float16)
    model.save_pretrained(folder)
    word_piece_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    exact = kind.from_pretrained(folder, dtype=torch.float64, **whole).eval()
    x = torch.randint(0, VOCABULARY, (2, 7), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(x)
    mask[1, 4:] = 0
    if config.model_type == "roberta":
        # Positions do not count padding tokens.
        x[0, 2] = x[1, 5] = config.pad_token_id
    with torch.no_grad():
        y = exact(x, attention_mask=mask).last_hidden_state
    if pooling:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        flags = {
            "word_embedding_dimension": config.hidden_size,
            "pooling_mode_cls_token": False,
            "pooling_mode_mean_tokens": True,
        }
        (folder / "1_Pooling/config.json").write_text(json.dumps(flags, indent=2) + "\n")
        modules = [("", "Transformer"), ("1_Pooling", "Pooling"), ("2_Normalize", "Normalize")]
        listed = [
            {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{kind}"}
            for i, (path, kind) in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(listed, indent=2) + "\n")
        weights = mask.unsqueeze(-1).to(y.dtype)
        y = torch.nn.functional.normalize((y * weights).sum(1) / weights.sum(1), dim=1)
    np.savez_compressed(
        folder / "expected.npz",
        x=x.numpy().astype(np.int32),
        mask=mask.numpy().astype(np.int32),
        y=y.to(torch.float32).numpy(),
    )


def write_classifier(folder, config, kind):
    kind = getattr(transformers, kind)
    scattered(kind(config)).to(torch.float16).save_pretrained(folder)
    word_piece_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    x = torch.randint(4, VOCABULARY, (3, 7), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(x)
    mask[1, 4:] = mask[2, 1:] = 0
    x[mask == 0] = config.pad_token_id
    y = read_exact(kind, folder)(x, attention_mask=mask).logits
    write_expected(folder, x=x, mask=mask, y=y)


def read_exact(kind, folder):
    return kind.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager").eval()


def write_expected(folder, **tensors):
    stored = {torch.float64: torch.float32, torch.int64: torch.int32}
    np.savez_compressed(folder / "expected.npz", **{
        name: x.detach().to(stored.get(x.dtype, x.dtype)).numpy() for name, x in tensors.items()})


def pixels(config, count):
    size = config.image_size
    height, width = (size, size) if isinstance(size, int) else size
    return torch.randn(
        count, config.num_channels, height, width, generator=torch.Generator().manual_seed(2)
    )


def write_preprocessor(folder, kind, **fields):
    fields = {
        "image_processor_type": kind,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.5, 0.4, 0.3],
        "image_std": [0.5, 0.25, 0.2],
        "rescale_factor": 1 / 255,
        **fields,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(fields, indent=2) + "\n")


def write_vit(folder, config, kind):
    kind = getattr(transformers, kind)
    scattered(kind(config)).to(torch.bfloat16).save_pretrained(folder)
    x = pixels(config, 3)
    y = read_exact(kind, folder)(x.double())
    size = dict(zip(("height", "width"), x.shape[2:]))
    write_preprocessor(folder, "ViTImageProcessor", size=size)
    write_expected(folder, x=x, y=y.logits if hasattr(y, "logits") else y.last_hidden_state)


def write_clip(folder, config):
    scattered(transformers.CLIPModel(config)).to(torch.bfloat16).save_pretrained(folder)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    images = pixels(config.vision_config, 2)
    ids = torch.randint(0, VOCABULARY - 1, (3, 7), generator=torch.Generator().manual_seed(3))
    end = config.text_config.eos_token_id
    # End tokens at the end, in the middle with another one behind it, and at the beginning.
    ids[0, 6] = ids[1, 3] = ids[1, 5] = ids[2, 0] = end
    y = read_exact(transformers.CLIPModel, folder)(input_ids=ids, pixel_values=images.double())
    size = config.vision_config.image_size
    write_preprocessor(
        folder,
        "CLIPImageProcessor",
        size={"shortest_edge": size},
        do_center_crop=True,
        crop_size={"height": size, "width": size},
    )
    write_expected(folder, input_ids=ids, pixel_values=images, logits_per_image=y.logits_per_image,
                   image_embeds=y.image_embeds, text_embeds=y.text_embeds)


def write_whisper(folder, config):
    kind = transformers.WhisperForConditionalGeneration
    scattered(kind(config)).to(torch.bfloat16).save_pretrained(folder)
    byte_level_tokenizer().save(str(folder / "tokenizer.json"), pretty=False)
    frames = 2 * config.max_source_positions
    sound = torch.randn(2, config.num_mel_bins, frames, generator=torch.Generator().manual_seed(2))
    ids = torch.randint(0, VOCABULARY, (2, 5), generator=torch.Generator().manual_seed(3))
    y = read_exact(kind, folder)(input_features=sound.double(), decoder_input_ids=ids).logits
    fields = {
        "feature_extractor_type": "WhisperFeatureExtractor",
        "feature_size": config.num_mel_bins,
        "nb_max_frames": frames,
        "sampling_rate": 16000,
        "hop_length": 160,
        "n_fft": 400,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(fields, indent=2) + "\n")
    write_expected(folder, input_features=sound, decoder_input_ids=ids, logits=y)


def write_pytorch(folder, of, shards):
    """The weights of the folder `of` in files of torch.save. In one file every second tensor is
    f64."""
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
    # The beginning of a sequence is longer than the positions that the angles were learnt from,
    # and the ramp has channels on both sides.
    longer = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0,
              "original_max_position_embeddings": 16, "beta_fast": 4.0, "beta_slow": 0.5}
    # Three of four channels are rotated, each pair by a factor of its own.
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
        "olmo2": (lambda: transformers.Olmo2Config(**common, pad_token_id=0), bf16),
        # The first block rotates queries and keys, the second sees a window and rotates none.
        "smollm3": (lambda: transformers.SmolLM3Config(
            **common, pad_token_id=0, no_rope_layer_interval=2, use_sliding_window=True,
            sliding_window=3, mlp_bias=True, attention_bias=True), bf16),
        "phi": (lambda: transformers.PhiConfig(**common), f16),
        "phi_norms": (lambda: transformers.PhiConfig(
            **dict(common, num_key_value_heads=1), **tied, qk_layernorm=True,
            rope_parameters={"rope_type": "linear", "rope_theta": 100.0, "factor": 2.0,
                             "partial_rotary_factor": 1.0}), bf16),
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
    encoders = {
        "bert": (transformers.BertConfig(**bert), False),
        "sentence": (transformers.BertConfig(**bert), True),
        "roberta": (
            transformers.RobertaConfig(**bert, type_vocab_size=1, layer_norm_eps=1e-5),
            False,
        ),
        "distilbert": (
            transformers.DistilBertConfig(
                vocab_size=VOCABULARY,
                dim=16,
                n_layers=2,
                n_heads=4,
                hidden_dim=24,
                max_position_embeddings=32,
            ),
            False,
        ),
    }
    animals = {0: "ant", 1: "bee", 2: "cat"}
    classifiers = {
        "bert_classifier": (
            transformers.BertConfig(**bert, id2label=animals), "BertForSequenceClassification"),
        "roberta_classifier": (
            transformers.RobertaConfig(
                **bert, type_vocab_size=1, layer_norm_eps=1e-5, id2label=animals),
            "RobertaForSequenceClassification",
        ),
        # One label: regression.
        "distilbert_regression": (
            transformers.DistilBertConfig(
                vocab_size=VOCABULARY, dim=16, n_layers=2, n_heads=4, hidden_dim=24,
                max_position_embeddings=32, num_labels=1),
            "DistilBertForSequenceClassification",
        ),
    }
    blocks = dict(hidden_size=16, num_hidden_layers=2, num_attention_heads=4, intermediate_size=24)
    vit = dict(blocks, patch_size=4)
    towers = dict(
        text_config=dict(
            blocks,
            vocab_size=VOCABULARY,
            max_position_embeddings=20,
            eos_token_id=VOCABULARY - 1,
            bos_token_id=0,
            pad_token_id=0,
        ),
        vision_config=dict(
            blocks, hidden_size=24, intermediate_size=20, image_size=8, patch_size=4
        ),
    )
    whisper = dict(
        vocab_size=VOCABULARY,
        num_mel_bins=6,
        d_model=16,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=2,
        encoder_ffn_dim=24,
        decoder_ffn_dim=20,
        max_source_positions=10,
        max_target_positions=32,
        bos_token_id=0,
        eos_token_id=0,
        pad_token_id=0,
        decoder_start_token_id=1,
        begin_suppress_tokens=None,
    )
    others = {
        "vit": (write_vit, lambda: transformers.ViTConfig(
            **vit, image_size=8, id2label=animals), "ViTForImageClassification"),
        "vit_hidden": (write_vit, lambda: transformers.ViTConfig(
            **vit, image_size=[8, 12], qkv_bias=False, hidden_act="relu"), "ViTModel"),
        "clip": (write_clip, lambda: transformers.CLIPConfig(**towers, projection_dim=12)),
        "whisper": (write_whisper, lambda: transformers.WhisperConfig(**whisper)),
    }
    for name, (write, config, *how) in others.items():
        if not wanted or name in wanted:
            write(root / name, config(), *how)
    for name, (config, *how) in decoders.items():
        if not wanted or name in wanted:
            write_decoder(root / name, config(), *how)
    for name, (config, pooling) in encoders.items():
        if not wanted or name in wanted:
            write_encoder(root / name, config, pooling=pooling)
    for name, (config, kind) in classifiers.items():
        if not wanted or name in wanted:
            write_classifier(root / name, config, kind)
    for name in ("pytorch", "pytorch_shards"):
        if not wanted or name in wanted:
            write_pytorch(root / name, root / "sentence", shards=name == "pytorch_shards")


if __name__ == "__main__":
    write_all(pathlib.Path(sys.argv[1]), sys.argv[2:])
