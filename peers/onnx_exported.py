#!/usr/bin/env python3
"""Checks exported models by `onnx.checker` and ONNX Runtime, for `cargo xtask onnx-tests`.

Each line of the standard input is a request, as JSON: model, inputs, expected (files), rtol, atol.
Each line of the standard output is an answer: "agrees", or the reason why not. Outputs agree where
|y - expected| <= atol + rtol |expected|.
"""

import json
import struct
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import onnxruntime

TYPES = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "F8_E8M0": ml_dtypes.float8_e8m0fnu,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U64": np.uint64,
    "U32": np.uint32,
    "U16": np.uint16,
    "U8": np.uint8,
    "BOOL": np.bool_,
}


def read(path):
    """The tensors of a safetensors file."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in header.items():
        start, end = entry["data_offsets"]
        raw = data[8 + length + start : 8 + length + end]
        tensors[name] = np.frombuffer(raw, TYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


def fed(name, value, types):
    """A value as ONNX Runtime takes it; NumPy lacks the short floating-point formats."""
    if value.dtype.kind == "V" or value.dtype.type.__module__.startswith("ml_dtypes"):
        bits = value.view(np.uint8 if value.dtype.itemsize == 1 else np.uint16)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, types[name])
    return onnxruntime.OrtValue.ortvalue_from_numpy(value)


def widened(model):
    """The model with outputs that NumPy can hold: ONNX Runtime has no way to hand out the short
    formats."""
    short = (onnx.TensorProto.BFLOAT16, onnx.TensorProto.FLOAT8E4M3FN, onnx.TensorProto.FLOAT8E5M2)
    for port in model.graph.output:
        if port.type.tensor_type.elem_type in short:
            inner = f"{port.name}__short"
            for node in model.graph.node:
                node.output[:] = [inner if name == port.name else name for name in node.output]
                node.input[:] = [inner if name == port.name else name for name in node.input]
            model.graph.node.append(
                onnx.helper.make_node("Cast", [inner], [port.name], to=onnx.TensorProto.FLOAT)
            )
            port.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    return model.SerializeToString()


def verdict(request):
    """The answer for one model."""
    model = onnx.load(request["model"])
    onnx.checker.check_model(model, full_check=True)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        widened(model), options, providers=["CPUExecutionProvider"]
    )
    types = {port.name: port.type.tensor_type.elem_type for port in model.graph.input}
    given = read(request["inputs"])
    expected = read(request["expected"])
    feed = {port.name: fed(port.name, given[port.name], types) for port in session.get_inputs()}
    names = [port.name for port in session.get_outputs()]
    outputs = dict(zip(names, session.run_with_ort_values(names, feed), strict=True))
    for name, reference in expected.items():
        output = outputs[name].numpy()
        if output.shape != reference.shape:
            return f"{name}: {output.shape} instead of {reference.shape}"
        wanted = reference.astype(np.float64)
        found = output.astype(np.float64)
        if not np.allclose(
            found, wanted, rtol=request["rtol"], atol=request["atol"], equal_nan=True
        ):
            finite = np.isfinite(wanted) & np.isfinite(found)
            return (
                f"{name}: outputs differ by {np.abs(found - wanted)[finite].max(initial=0.0):.3g}"
            )
    return "agrees"


def main():
    for line in sys.stdin:
        try:
            answer = verdict(json.loads(line))
        except Exception as error:  # the message of any error is the reason
            answer = (str(error).strip().splitlines() or [type(error).__name__])[0][:240]
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
