#!/usr/bin/env python3
"""Models that ONNX Runtime's own quantizers wrote, as folders that `cargo xtask onnx-tests DIR`
runs.

    pip install torch onnx==1.23.* onnxruntime onnxscript onnx_ir sympy numpy ml_dtypes
    python3 peers/onnx_quantized.py DIR

PyTorch exports a transformer, a perceptron and convolutions. The quantizers are:

- `quantize_dynamic`;
- `quantize_static` in both formats (QDQ, QOperator) with 4-, 8- and 16-bit codes;
- the block-wise weights of `matmul_nbits_quantizer` (round to nearest, HQQ).

Weights and inputs are random with fixed seeds. Expected outputs are ONNX Runtime's, without its
graph optimizations, which change the values that a model computes.
"""

import json
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization import matmul_nbits_quantizer as nbits
from onnxruntime.quantization.shape_inference import quant_pre_process
from torch import nn

sys.path.insert(0, str(Path(__file__).parent))
from onnx_cases import runtime_says, write  # noqa: E402


def convolutions():
    """Convolutions, one of them depth-wise, pooling, a head."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.ReLU(),
        nn.Conv2d(16, 32, 1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10),
    )


def models():
    """Name, module, input."""
    layer = nn.TransformerEncoderLayer(
        64, 4, 256, 0.0, batch_first=True, norm_first=True, activation="gelu"
    )
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    for parameter in encoder.parameters():  # its layers begin as copies, which exporters share
        parameter.data += 0.02 * torch.randn_like(parameter)
    yield "encoder", encoder, torch.randn(2, 8, 64)
    widths = [nn.Linear(200, 256), nn.GELU(), nn.Linear(256, 96), nn.GELU(), nn.Linear(96, 10)]
    yield "perceptron", nn.Sequential(*widths), torch.randn(2, 4, 200)
    yield "convolutions", convolutions(), torch.randn(2, 3, 16, 16)


class Samples(CalibrationDataReader):
    """The input, and others like it."""

    def __init__(self, name, x):
        random = np.random.default_rng(3)
        self.left = [{name: x}] + [
            {name: random.standard_normal(x.shape).astype(np.float32)} for _ in range(7)
        ]

    def get_next(self):
        return self.left.pop() if self.left else None


def block_wise(config):
    """Weights of MatMul in blocks, by an algorithm of `matmul_nbits_quantizer`."""

    def quantize(source, target, _):
        quantizer = nbits.MatMulNBitsQuantizer(onnx.load(source), algo_config=config)
        quantizer.process()
        quantizer.model.save_model_to_file(str(target), False)

    return quantize


def static(form, activations, weights, per_channel):
    """Codes of activations by calibration."""
    more = {
        "ActivationSymmetric": activations in (QuantType.QInt8, QuantType.QInt16),
        "WeightSymmetric": True,
    }

    def quantize(source, target, samples):
        quantize_static(
            source,
            target,
            samples,
            quant_format=form,
            activation_type=activations,
            weight_type=weights,
            per_channel=per_channel,
            extra_options=more,
        )

    return quantize


def dynamic(weights, per_channel):
    """Codes of activations as they come."""
    return lambda source, target, _: quantize_dynamic(
        source, target, weight_type=weights, per_channel=per_channel
    )


def ways():
    """Name, and the function that quantizes."""
    i8, u8, i16, u16, i4, u4 = (
        getattr(QuantType, f"Q{t}") for t in ("Int8", "UInt8", "Int16", "UInt16", "Int4", "UInt4")
    )
    yield "dynamic_i8", dynamic(i8, False)
    yield "dynamic_u8_channels", dynamic(u8, True)
    yield "qdq_i8_channels", static(QuantFormat.QDQ, i8, i8, True)
    yield "qdq_u8", static(QuantFormat.QDQ, u8, u8, False)
    yield "qdq_u8_i8_channels", static(QuantFormat.QDQ, u8, i8, True)
    yield "qdq_u16_i8", static(QuantFormat.QDQ, u16, i8, False)
    yield "qdq_u16_i4", static(QuantFormat.QDQ, u16, i4, True)
    yield "qdq_i8_i4_channels", static(QuantFormat.QDQ, i8, i4, True)
    yield "qdq_u8_u4", static(QuantFormat.QDQ, u8, u4, False)
    yield "qoperator_u8_i8", static(QuantFormat.QOperator, u8, i8, False)
    yield "qoperator_i8_channels", static(QuantFormat.QOperator, i8, i8, True)
    for block in (16, 32, 64, 128, 256):
        for symmetric in (True, False):
            kind = "symmetric" if symmetric else "zeros"
            yield f"4bits_{block}_{kind}", block_wise(
                nbits.DefaultWeightOnlyQuantConfig(block, symmetric)
            )
    yield "8bits_32_zeros", block_wise(nbits.DefaultWeightOnlyQuantConfig(32, False, bits=8))
    yield "8bits_64_symmetric", block_wise(nbits.DefaultWeightOnlyQuantConfig(64, True, bits=8))
    yield "2bits_32_zeros", block_wise(nbits.DefaultWeightOnlyQuantConfig(32, False, bits=2))
    yield "4bits_32_qdq_symmetric", block_wise(
        nbits.DefaultWeightOnlyQuantConfig(32, True, quant_format=QuantFormat.QDQ)
    )
    yield "4bits_32_qdq_zeros", block_wise(
        nbits.DefaultWeightOnlyQuantConfig(32, False, quant_format=QuantFormat.QDQ)
    )
    yield "4bits_64_hqq", block_wise(nbits.HQQWeightOnlyQuantConfig(64))


def exported(out, name, module, x):
    """The model as PyTorch writes it, with MatMul and Add. Also the model with Gemm, prepared as
    the quantizers ask for it."""
    plain, ready = out / f"{name}.onnx", out / f"{name}_ready.onnx"
    torch.onnx.export(
        module.eval(),
        (x,),
        str(plain),
        dynamo=False,
        input_names=["x"],
        output_names=["y"],
        opset_version=21,
    )
    quant_pre_process(str(plain), str(ready), skip_symbolic_shape=True)
    return plain, ready


def finish(out, case, source, x, quantize):
    """One quantized model, and its line."""
    folder = out / case
    folder.mkdir(exist_ok=True)
    path = folder / "model.onnx"
    quantize(str(source), path, Samples("x", x))
    model = onnx.load(path)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": x})
    # If activations are quantized, a last bit decides to which code a tie rounds. Later layers
    # carry the difference on. In the encoder ONNX Runtime's fused kernels are up to 2.1
    # steps (of the largest output over 127) from its nodes one by one. ONNX Runtime also multiplies
    # blocked weights that come as QDQ with activations in codes.
    steps = 0 if "bits" in case and "qdq" not in case else 5 if case.startswith("encoder") else 2
    atol = max(1e-4, steps * float(np.abs(y).max()) / 127)
    entry = {
        "name": case,
        "kind": "model, onnxruntime.quantization",
        "rtol": 1e-3,
        "atol": atol,
        "sets": 1,
    }
    entry["ops"] = sorted({node.op_type for node in model.graph.node})
    entry["runtime"] = runtime_says(model, [([x], [y])], entry["rtol"], entry["atol"])
    write(folder / "inputs.safetensors", {"x": x})
    write(folder / "expected.safetensors", {"y": y})
    return entry


def quantized(out):
    """Every model in every way: lines, and what was refused."""
    entries, refused = [], []
    for name, module, x in models():
        plain, ready = exported(out, name, module, x)
        for way, quantize in ways():
            if name == "convolutions" and "bits" in way:
                continue
            # Only MatMul has blocks, so weights of 4 bits come in both forms.
            source = plain if "bits" in way or "i4" in way or "u4" in way else ready
            try:
                entries.append(finish(out, f"{name}_{way}", source, x.numpy(), quantize))
            except Exception as error:  # the quantizers refuse some models, which we cannot mend
                refused.append(
                    f"{name} {way}: {(str(error).splitlines() or [type(error).__name__])[0][:200]}"
                )
        plain.unlink()
        ready.unlink()
    return entries, refused


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    entries, refused = quantized(out)
    (out / "cases.json").write_text(json.dumps(entries, indent=1))
    print(
        f"{len(entries)} models, of which ONNX Runtime {onnxruntime.__version__} passes "
        f"{sum(e['runtime'] == 'passes' for e in entries)}"
    )
    for line in refused:
        print(f"not quantized: {line}")


if __name__ == "__main__":
    main()
