#!/usr/bin/env python3
"""Small models that ONNX Runtime's quantizer made integer with calibrated activations, and the
outputs of its CPU provider. Writes the folders `static_*` of crates/overdrive-formats/tests/onnx.
The expected outputs are those of the nodes, each run by itself. Fused kernels of ONNX Runtime round
elsewhere, and may be a code or two off.

    pip install onnx==1.23.* onnxruntime numpy ml_dtypes
    python3 peers/onnx_static.py crates/overdrive-formats/tests/onnx
"""

import sys
import tempfile
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

sys.path.insert(0, str(Path(__file__).parent))
from onnx_cases import write  # noqa: E402

RANDOM = np.random.default_rng(11)
SHAPE = (2, 3, 8, 8)


def network():
    """Convolutions, one of them in groups, activations, pooling, a layer and products with their
    sum."""
    weight = lambda name, *shape: numpy_helper.from_array(
        (RANDOM.standard_normal(shape) * 0.4).astype(np.float32), name
    )
    node = lambda op, inputs, output, **attributes: helper.make_node(
        op, inputs, [output], name=output, **attributes
    )
    nodes = [
        node("Conv", ["x", "w0", "b0"], "conv0", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Relu", ["conv0"], "relu0"),
        node("MaxPool", ["relu0"], "pool", kernel_shape=[2, 2], strides=[2, 2]),
        node(
            "Conv", ["pool", "w1", "b1"], "conv1", kernel_shape=[3, 3], pads=[0, 1, 1, 0], group=2
        ),
        node("Sigmoid", ["conv1"], "gate"),
        node("Mul", ["conv1", "gate"], "gated"),
        node("LeakyRelu", ["conv1"], "leaky", alpha=0.1),
        node("Concat", ["gated", "leaky"], "both", axis=1),
        # Three elements, because a mean of four codes may lie exactly between two codes.
        node("AveragePool", ["both"], "mean", kernel_shape=[3, 1]),
        node("Flatten", ["mean"], "flat", axis=1),
        node("Gemm", ["flat", "w2", "b2"], "dense", transB=1),
        node("Relu", ["dense"], "relu2"),
        node("MatMul", ["relu2", "w3"], "product"),
        node("GlobalAveragePool", ["both"], "whole"),
        node("Flatten", ["whole"], "channels", axis=1),
        node("MatMul", ["channels", "w4"], "product1"),
        node("Add", ["product", "product1"], "sum"),
        node("Add", ["sum", "b3"], "y"),
    ]
    weights = [
        weight("w0", 8, 3, 3, 3),
        weight("b0", 8),
        weight("w1", 6, 4, 3, 3),
        weight("b1", 6),
        weight("w2", 10, 36),
        weight("b2", 10),
        weight("w3", 10, 5),
        weight("w4", 12, 5),
        weight("b3", 5),
    ]
    ports = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        for name, shape in (("x", SHAPE), ("y", (2, 5)))
    ]
    graph = helper.make_graph(nodes, "network", ports[:1], ports[1:], weights)
    return helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
        producer_name="peers/onnx_static.py",
    )


class Samples(CalibrationDataReader):
    def __init__(self):
        self.left = iter(
            [{"x": RANDOM.standard_normal(SHAPE).astype(np.float32)} for _ in range(8)]
        )

    def get_next(self):
        return next(self.left, None)


LEVELS = onnxruntime.GraphOptimizationLevel
SIGNED, UNSIGNED = QuantType.QInt8, QuantType.QUInt8
# Name, format, types of activations and weights, whether weights have a scale for each channel.
KINDS = [
    ("qdq_signed", QuantFormat.QDQ, SIGNED, SIGNED, False),
    ("qdq_signed_per_channel", QuantFormat.QDQ, SIGNED, SIGNED, True),
    ("qdq_unsigned", QuantFormat.QDQ, UNSIGNED, UNSIGNED, False),
    ("qdq_mixed_per_channel", QuantFormat.QDQ, UNSIGNED, SIGNED, True),
    ("qlinear_signed", QuantFormat.QOperator, SIGNED, SIGNED, False),
    ("qlinear_unsigned", QuantFormat.QOperator, UNSIGNED, UNSIGNED, False),
    ("qlinear_mixed_per_channel", QuantFormat.QOperator, UNSIGNED, SIGNED, True),
]


def run(path, x, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return session.run(["y"], {"x": x})[0]


def main():
    out = Path(sys.argv[1])
    model = network()
    x = RANDOM.standard_normal(SHAPE).astype(np.float32)
    for name, form, activations, weights, per_channel in KINDS:
        folder = out / f"static_{name}"
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            before = Path(scratch) / "before.onnx"
            onnx.save(model, before)
            quantize_static(
                before,
                folder / "model.onnx",
                Samples(),
                quant_format=form,
                activation_type=activations,
                weight_type=weights,
                per_channel=per_channel,
            )
        found, fused = (
            run(folder / "model.onnx", x, level)
            for level in (LEVELS.ORT_DISABLE_ALL, LEVELS.ORT_ENABLE_ALL)
        )
        write(folder / "inputs.safetensors", {"x": x})
        write(folder / "expected.safetensors", {"y": found})
        ops = sorted({node.op_type for node in onnx.load(folder / "model.onnx").graph.node})
        print(
            name,
            f"{np.abs(found - fused).max() / np.abs(found).max():.1e} of the largest output "
            "by fused kernels",
            *ops,
        )


if __name__ == "__main__":
    main()
