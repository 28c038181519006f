#!/usr/bin/env python3
"""Writes a model with the architecture of a well-known one and random weights, for timings. The
time of a call does not depend on the values of the weights.

    python3 peers/random_weights.py minilm|gpt2|gpt2-medium|gpt2-bytes FOLDER [bf16]
    python3 peers/random_weights.py llama|llama-1b|llama-bytes FOLDER [bf16]
    python3 peers/random_weights.py resnet50 FILE.onnx

Folders are in Hugging Face's format; decoders have a tokenizer of bytes. Needs numpy; resnet50
needs onnx.
"""

import json
import sys
from pathlib import Path

import numpy as np

random = np.random.default_rng(1)


def normal(*shape, std=0.02):
    return np.float32(std) * random.standard_normal(shape, dtype=np.float32)


def layer(name, outputs, inputs):
    return {
        f"{name}.weight": normal(outputs, inputs),
        f"{name}.bias": np.zeros(outputs, np.float32),
    }


def norm(name, size):
    return {f"{name}.weight": np.ones(size, np.float32), f"{name}.bias": np.zeros(size, np.float32)}


def bert(vocabulary, width, inner, layers, heads):
    config = {
        "model_type": "bert",
        "architectures": ["BertModel"],
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "intermediate_size": inner,
        "max_position_embeddings": 512,
        "type_vocab_size": 2,
        "hidden_act": "gelu",
        "layer_norm_eps": 1e-12,
    }
    tensors = {
        "embeddings.word_embeddings.weight": normal(vocabulary, width),
        "embeddings.position_embeddings.weight": normal(512, width),
        "embeddings.token_type_embeddings.weight": normal(2, width),
        **norm("embeddings.LayerNorm", width),
    }
    for i in range(layers):
        block = f"encoder.layer.{i}"
        for part in ["query", "key", "value"]:
            tensors |= layer(f"{block}.attention.self.{part}", width, width)
        tensors |= layer(f"{block}.attention.output.dense", width, width)
        tensors |= norm(f"{block}.attention.output.LayerNorm", width)
        tensors |= layer(f"{block}.intermediate.dense", inner, width)
        tensors |= layer(f"{block}.output.dense", width, inner)
        tensors |= norm(f"{block}.output.LayerNorm", width)
    return config, tensors


def gpt2(width, layers, heads, vocabulary=50257):
    config = {
        "model_type": "gpt2",
        "architectures": ["GPT2LMHeadModel"],
        "vocab_size": vocabulary,
        "n_positions": 1024,
        "n_embd": width,
        "n_layer": layers,
        "n_head": heads,
        "activation_function": "gelu_new",
        "layer_norm_epsilon": 1e-5,
    }
    tensors = {"wte.weight": normal(vocabulary, width), "wpe.weight": normal(1024, width)}
    for i in range(layers):
        block = f"h.{i}"
        tensors |= norm(f"{block}.ln_1", width) | norm(f"{block}.ln_2", width)
        # Conv1D keeps weights as inputs by outputs.
        for part, inputs, outputs in [
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, 4 * width),
            ("mlp.c_proj", 4 * width, width),
        ]:
            tensors[f"{block}.{part}.weight"] = normal(inputs, outputs)
            tensors[f"{block}.{part}.bias"] = np.zeros(outputs, np.float32)
    return config, tensors | norm("ln_f", width)


def llama(vocabulary, width, inner, layers, heads, key_heads):
    config = {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": vocabulary,
        "hidden_size": width,
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": key_heads,
        "intermediate_size": inner,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
    }
    keys = width // heads * key_heads
    tensors = {
        "model.embed_tokens.weight": normal(vocabulary, width),
        "lm_head.weight": normal(vocabulary, width),
        "model.norm.weight": np.ones(width, np.float32),
    }
    for i in range(layers):
        block = f"model.layers.{i}"
        for part, outputs, inputs in [
            ("self_attn.q_proj", width, width),
            ("self_attn.k_proj", keys, width),
            ("self_attn.v_proj", keys, width),
            ("self_attn.o_proj", width, width),
            ("mlp.gate_proj", inner, width),
            ("mlp.up_proj", inner, width),
            ("mlp.down_proj", width, inner),
        ]:
            tensors[f"{block}.{part}.weight"] = normal(outputs, inputs)
        for part in ["input_layernorm", "post_attention_layernorm"]:
            tensors[f"{block}.{part}.weight"] = np.ones(width, np.float32)
    return config, tensors


FOLDERS = {
    # https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/blob/main/config.json.
    "minilm": lambda: bert(30522, 384, 1536, 6, 12),
    # The smallest GPT-2, of 124 million parameters, and the next, of 355 million.
    "gpt2": lambda: gpt2(768, 12, 12),
    "gpt2-medium": lambda: gpt2(1024, 24, 16),
    # Models of bytes, 15 million parameters each: a minute of training on a GPU.
    "gpt2-bytes": lambda: gpt2(448, 6, 7, 256),
    "llama-bytes": lambda: llama(256, 448, 1216, 6, 7, 7),
    # 134 million parameters in the shape of Llama 3.
    "llama": lambda: llama(32000, 768, 2048, 12, 12, 4),
    # 1.1 billion, as TinyLlama has them.
    "llama-1b": lambda: llama(32000, 2048, 5632, 22, 32, 4),
}


def tokenizer():
    """A token a byte, by the alphabet of GPT-2."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    alphabet = [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    vocabulary = {character: i for i, character in enumerate(alphabet)}
    model = {"type": "BPE", "vocab": vocabulary, "merges": []}
    return {"version": "1.0", "pre_tokenizer": level, "decoder": level, "model": model}


def bf16(x):
    """The upper halves of x, to the nearest."""
    return ((x.view(np.uint32) + 0x8000) >> 16).astype(np.uint16)


def write_folder(name, folder, dtype):
    config, tensors = FOLDERS[name]()
    stored, word = {"float32": (lambda x: x, "F32"), "bfloat16": (bf16, "BF16")}[dtype]
    header, end, parts = {"__metadata__": {"format": "pt"}}, 0, []
    for key, x in tensors.items():
        parts.append(stored(np.ascontiguousarray(x)).tobytes())
        begin, end = end, end + len(parts[-1])
        header[key] = {"dtype": word, "shape": list(x.shape), "data_offsets": [begin, end]}
    # Data begins at a multiple of eight bytes.
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config | {"torch_dtype": dtype}, indent=1))
    if config["model_type"] in ("gpt2", "llama"):
        (folder / "tokenizer.json").write_text(json.dumps(tokenizer()))
    with open(folder / "model.safetensors", "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.writelines(parts)


def resnet50(path):
    """He et al., arXiv:1512.03385, table 1, with the stride in the 3x3 convolution, as torchvision
    has it."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes, constants = [], []

    def constant(name, value):
        constants.append(numpy_helper.from_array(value, name))
        return name

    def node(op, inputs, **attributes):
        out = f"v{len(nodes)}"
        nodes.append(helper.make_node(op, inputs, [out], **attributes))
        return out

    def convolution(x, name, outputs, inputs, size, stride, gain=1.0):
        std = (2 / (inputs * size * size)) ** 0.5
        weight = constant(f"{name}.weight", normal(outputs, inputs, size, size, std=std))
        half = size // 2
        x = node(
            "Conv", [x, weight], kernel_shape=[size] * 2, strides=[stride] * 2, pads=[half] * 4
        )
        values = [gain, 0.0, 0.0, 1.0]
        parts = ["gamma", "beta", "mean", "variance"]
        parameters = [
            constant(f"{name}.{part}", np.full(outputs, value, np.float32))
            for part, value in zip(parts, values)
        ]
        return node("BatchNormalization", [x, *parameters], epsilon=1e-5)

    x = node("Relu", [convolution("x", "stem", 64, 3, 7, 2)])
    x = node("MaxPool", [x], kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    inputs = 64
    for stage, (blocks, width) in enumerate([(3, 64), (4, 128), (6, 256), (3, 512)]):
        for block in range(blocks):
            name = f"layer{stage + 1}.{block}"
            stride = 2 if block == 0 and stage > 0 else 1
            y = node("Relu", [convolution(x, f"{name}.conv1", width, inputs, 1, 1)])
            y = node("Relu", [convolution(y, f"{name}.conv2", width, width, 3, stride)])
            # Small, so that sums over blocks do not grow.
            y = convolution(y, f"{name}.conv3", 4 * width, width, 1, 1, gain=0.2)
            if block == 0:
                x = convolution(x, f"{name}.down", 4 * width, inputs, 1, stride)
            x = node("Relu", [node("Add", [y, x])])
            inputs = 4 * width
    x = node("Flatten", [node("GlobalAveragePool", [x])])
    weight, bias = constant("fc.weight", normal(1000, 2048)), constant("fc.bias", normal(1000))
    nodes.append(helper.make_node("Gemm", [x, weight, bias], ["y"], transB=1))
    images = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 224, 224])
    classes = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1000])
    graph = helper.make_graph(nodes, "resnet50", [images], [classes], constants)
    # Engines lag behind the newest version of the format.
    opsets = [helper.make_opsetid("", 17)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)


name, out, *rest = sys.argv[1:]
if name == "resnet50":
    resnet50(out)
else:
    write_folder(name, Path(out), "bfloat16" if rest == ["bf16"] else "float32")
