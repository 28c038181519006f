#!/usr/bin/env python3
"""Small cases of the com.microsoft ops that exporters of transformers emit, with the outputs of
ONNX Runtime's CPU provider. They are the folders `microsoft_*` of
crates/overdrive-formats/tests/onnx.

    pip install onnx==1.23.* onnxruntime numpy ml_dtypes
    python3 peers/onnx_microsoft.py crates/overdrive-formats/tests/onnx
"""

import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

sys.path.insert(0, str(Path(__file__).parent))
from onnx_cases import write  # noqa: E402

RANDOM = np.random.default_rng(5)


def normal(*shape, size=1.0):
    return (size * RANDOM.standard_normal(shape)).astype(np.float32)


def angles(longest, half):
    at = np.arange(longest)[:, None] * 0.7 ** np.arange(half)[None]
    return np.cos(at).astype(np.float32), np.sin(at).astype(np.float32)


def four_bits(n, k, block):
    """Codes of MatMulNBits: two to a byte, the first in the low half."""
    blocks = k // block
    codes = RANDOM.integers(0, 16, (n, blocks, block)).astype(np.uint8)
    return codes[..., ::2] | codes[..., 1::2] << 4


def cases():
    """Name, op, inputs in order (None where absent), how many outputs, attributes, names of inputs
    that are weights."""
    row, x = normal(2, 6), normal(2, 3, 8)
    gain, shift = 1 + normal(8, size=0.2), normal(8, size=0.2)
    yield "gelu", "Gelu", {"x": row}, 1, {}, []
    yield "bias_gelu", "BiasGelu", {"x": row, "b": normal(6)}, 1, {}, []
    yield "fast_gelu", "FastGelu", {"x": row}, 1, {}, []
    yield "fast_gelu_bias", "FastGelu", {"x": row, "b": normal(6)}, 1, {}, []
    yield "quick_gelu", "QuickGelu", {"x": row}, 1, {"alpha": 1.702}, []
    yield "skip_layer_norm", "SkipLayerNormalization", {
        "x": x,
        "skip": normal(2, 3, 8),
        "gain": gain,
        "shift": shift,
        "b": normal(8),
    }, 4, {"epsilon": 1e-5}, ["gain", "shift"]
    yield "skip_rms_norm", "SkipSimplifiedLayerNormalization", {
        "x": x,
        "skip": normal(2, 3, 8),
        "gain": gain,
    }, 1, {"epsilon": 1e-5}, ["gain"]
    weights, bias = normal(8, 24, size=0.4), normal(24, size=0.1)
    yield "attention", "Attention", {"x": x, "w": weights, "b": bias}, 1, {"num_heads": 2}, [
        "w",
        "b",
    ]
    yield "attention_causal", "Attention", {"x": x, "w": weights, "b": bias}, 1, {
        "num_heads": 2,
        "unidirectional": 1,
    }, ["w", "b"]
    mask = np.array([[1, 1, 1], [1, 1, 0]], np.int32)
    yield "attention_key_mask", "Attention", {"x": x, "w": weights, "b": bias, "mask": mask}, 1, {
        "num_heads": 2
    }, ["w", "b"]
    yield "attention_lengths", "Attention", {
        "x": x,
        "w": weights,
        "b": bias,
        "mask": np.array([3, 2], np.int32),
    }, 1, {"num_heads": 2}, ["w", "b", "mask"]
    q, k, v = normal(2, 3, 8), normal(2, 5, 8), normal(2, 5, 8)
    yield "multi_head", "MultiHeadAttention", {"q": q, "k": k, "v": v}, 1, {"num_heads": 2}, []
    yield "multi_head_bias_mask", "MultiHeadAttention", {
        "q": q,
        "k": k,
        "v": v,
        "b": bias,
        "mask": np.array([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]], np.int32),
        "add": normal(1, 2, 3, 5),
    }, 1, {"num_heads": 2, "scale": 0.6}, ["b"]
    yield "multi_head_cache", "MultiHeadAttention", {
        "q": normal(2, 3, 8),
        "k": normal(2, 3, 8),
        "v": normal(2, 3, 8),
        "b": None,
        "mask": None,
        "add": None,
        "past_k": normal(2, 2, 4, 4),
        "past_v": normal(2, 2, 4, 4),
    }, 3, {"num_heads": 2}, []
    cos, sin = angles(16, 8)
    long = lambda *values: np.array(values, np.int32)
    grouped = {"q": normal(1, 3, 64), "k": normal(1, 3, 32), "v": normal(1, 3, 32)}
    empty = lambda: np.zeros((1, 2, 0, 16), np.float32)
    yield "group_query_prompt", "GroupQueryAttention", {
        **grouped,
        "past_k": empty(),
        "past_v": empty(),
        "last": long(2),
        "total": long(3)[0],
    }, 3, {"num_heads": 4, "kv_num_heads": 2}, ["last", "total"]
    yield "group_query_rotary", "GroupQueryAttention", {
        **grouped,
        "past_k": empty(),
        "past_v": empty(),
        "last": long(2),
        "total": long(3)[0],
        "cos": cos,
        "sin": sin,
    }, 3, {"num_heads": 4, "kv_num_heads": 2, "do_rotary": 1}, ["last", "total", "cos", "sin"]
    step = {
        "q": normal(1, 1, 64),
        "k": normal(1, 1, 32),
        "v": normal(1, 1, 32),
        "past_k": normal(1, 2, 5, 16),
        "past_v": normal(1, 2, 5, 16),
        "last": long(5),
        "total": long(6)[0],
    }
    yield "group_query_step", "GroupQueryAttention", {**step, "cos": cos, "sin": sin}, 3, {
        "num_heads": 4,
        "kv_num_heads": 2,
        "do_rotary": 1,
    }, ["last", "total", "cos", "sin"]
    yield "group_query_window", "GroupQueryAttention", step, 3, {
        "num_heads": 4,
        "kv_num_heads": 2,
        "local_window_size": 3,
        "softcap": 5.0,
    }, ["last", "total"]
    packed, scales = four_bits(5, 64, 32), np.abs(normal(5 * 2, size=0.1)) + np.float32(0.05)
    bits = {"K": 64, "N": 5, "bits": 4, "block_size": 32}
    yield "mat_mul_4_bits", "MatMulNBits", {
        "x": normal(3, 64),
        "w": packed,
        "scale": scales,
    }, 1, bits, ["w", "scale"]
    yield "mat_mul_4_bits_zeros", "MatMulNBits", {
        "x": normal(3, 64),
        "w": packed,
        "scale": scales,
        "zero": RANDOM.integers(0, 256, 5).astype(np.uint8),
    }, 1, bits, ["w", "scale", "zero"]
    yield "mat_mul_8_bits", "MatMulNBits", {
        "x": normal(3, 64),
        "w": RANDOM.integers(0, 256, (5, 2, 32)).astype(np.uint8),
        "scale": scales,
    }, 1, {**bits, "bits": 8}, ["w", "scale"]
    places = np.array([[0, 1, 2], [4, 5, 6]], np.int64)
    cos, sin = angles(16, 2)
    yield "rotary", "RotaryEmbedding", {
        "x": normal(2, 2, 3, 4),
        "at": places,
        "cos": cos,
        "sin": sin,
    }, 1, {}, ["cos", "sin"]
    yield "rotary_interleaved", "RotaryEmbedding", {
        "x": normal(2, 3, 8),
        "at": np.array([3], np.int64),
        "cos": cos,
        "sin": sin,
    }, 1, {"interleaved": 1, "num_heads": 2}, ["cos", "sin"]
    # Last, so that the numbers drawn for those above stay as they were.
    taken = {"q": q, "k": normal(2, 2, 5, 4), "v": normal(2, 2, 5, 4), "b": bias}
    yield "multi_head_of_heads_bias", "MultiHeadAttention", taken, 1, {"num_heads": 2}, ["b"]
    cache = {"mask": np.array([[1] * 7, [0] + [1] * 6], np.int32), "past": normal(2, 2, 2, 4, 4)}
    yield "attention_cache", "Attention", {"x": x, "w": weights, "b": bias, **cache}, 2, {
        "num_heads": 2,
        "unidirectional": 1,
    }, ["w", "b"]
    widths = {"num_heads": 2, "qkv_hidden_sizes": [8, 8, 12]}
    yield "attention_widths", "Attention", {
        "x": x,
        "w": normal(8, 28, size=0.4),
        "b": normal(28, size=0.1),
    }, 1, widths, ["w", "b"]
    yield "attention_ends_starts", "Attention", {
        "x": x,
        "w": weights,
        "b": bias,
        "mask": np.array([3, 2, 0, 1], np.int32),
    }, 1, {"num_heads": 2}, ["w", "b", "mask"]
    smooth = {"num_heads": 4, "kv_num_heads": 2, "smooth_softmax": 1}
    yield "group_query_smooth", "GroupQueryAttention", step, 3, smooth, ["last", "total"]


def main():
    out = Path(sys.argv[1])
    for name, op, inputs, count, attributes, weights in cases():
        folder = out / f"microsoft_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        there = {key: np.asarray(value) for key, value in inputs.items() if value is not None}
        given = {key: value for key, value in there.items() if key not in weights}
        outputs = [f"y{i}" for i in range(count)]
        # No CPU kernel gives mean and deviation of a norm. The fourth output is the sum that was
        # normalised.
        if op == "SkipLayerNormalization":
            outputs[1:3] = ["", ""]
        node = helper.make_node(
            op,
            [key if key in there else "" for key in inputs],
            outputs,
            name="node",
            domain="com.microsoft",
            **attributes,
        )
        kind = lambda value: helper.np_dtype_to_tensor_dtype(value.dtype)
        graph = helper.make_graph(
            [node],
            op,
            [
                helper.make_tensor_value_info(key, kind(value), value.shape)
                for key, value in given.items()
            ],
            [helper.make_empty_tensor_value_info(key) for key in outputs if key],
            [numpy_helper.from_array(there[key], key) for key in weights],
        )
        opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=10, producer_name="peers/onnx_microsoft.py"
        )
        names = [key for key in outputs if key]
        for port in model.graph.output:
            port.CopyFrom(helper.make_tensor_value_info(port.name, TensorProto.FLOAT, None))
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), providers=["CPUExecutionProvider"]
        )
        found = session.run(names, given)
        (folder / "model.onnx").write_bytes(model.SerializeToString())
        write(folder / "inputs.safetensors", given)
        write(folder / "expected.safetensors", dict(zip(names, found)))
        print(name, [value.shape for value in found])


if __name__ == "__main__":
    main()
