#!/usr/bin/env python3
"""Writes ONNX's own backend tests as folders that `cargo xtask onnx-tests DIR` runs, with ONNX
Runtime's verdict on each.

    pip install onnx==1.23.* onnxruntime numpy
    python peers/onnx_cases.py DIR

DIR/<case>/ gets model.onnx and, per data set, inputs.safetensors and expected.safetensors (the
second set is inputs1.safetensors, and so on). DIR/cases.json has for each case:

- its name, kind and tolerances;
- the verdict of ONNX Runtime's CPU provider ("passes", or the reason why not);
- the values that are no tensor that safetensors holds, if there are any.
"""

import json
import struct
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.backend.test.loader import load_model_tests
from onnx.backend.test.case.node import collect_testcases

NAMES = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "float8_e8m0fnu": "F8_E8M0",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}


class NoTensor(Exception):
    """A value that safetensors cannot hold."""


def array_of(value):
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, (list, type(None))):
        raise NoTensor("sequences and optionals")
    if isinstance(value, (onnx.SequenceProto, onnx.OptionalProto)):
        raise NoTensor("sequences and optionals")
    return np.asarray(value)


def write(path, named):
    header, blobs, offset = {}, [], 0
    for name, value in sorted(named.items()):
        array = np.asarray(value)
        if str(array.dtype) not in NAMES:
            kind = "strings" if array.dtype.kind in "OUS" else str(array.dtype)
            raise NoTensor(kind)
        blob = np.ascontiguousarray(array).tobytes()
        header[name] = {
            "dtype": NAMES[str(array.dtype)],
            "shape": list(array.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        blobs.append(blob)
        offset += len(blob)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def names(ports):
    return [port.name for port in ports]


def runtime_says(model, sets, rtol, atol):
    """"passes", or why ONNX Runtime's CPU provider does not."""
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        session = onnxruntime.InferenceSession(
            model.SerializeToString(), options, providers=["CPUExecutionProvider"]
        )
        types = {i.name: i.type for i in model.graph.input}
        for inputs, expected in sets:
            feed = {}
            for name, value in zip([i.name for i in session.get_inputs()], inputs):
                if (
                    isinstance(value, np.ndarray)
                    and str(value.dtype) in NAMES
                    and value.dtype.kind == "V"
                ):
                    kind = types[name].tensor_type.elem_type
                    bits = value.view(np.uint8 if value.dtype.itemsize == 1 else np.uint16)
                    value = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)
                feed[name] = value
            mixed = any(isinstance(v, onnxruntime.OrtValue) for v in feed.values())
            if mixed:
                feed = {
                    k: (
                        v
                        if isinstance(v, onnxruntime.OrtValue)
                        else onnxruntime.OrtValue.ortvalue_from_numpy(v)
                    )
                    for k, v in feed.items()
                }
                outputs = [o.numpy() for o in session.run_with_ort_values(None, feed)]
            else:
                outputs = session.run(None, feed)
            for output, reference in zip(outputs, expected):
                agree(output, reference, rtol, atol)
        return "passes"
    except Exception as error:  # the message of any error is the reason
        return (str(error).strip().splitlines() or [type(error).__name__])[0][:160]


def agree(output, reference, rtol, atol):
    if isinstance(reference, list):
        for a, b in zip(output, reference, strict=True):
            agree(a, b, rtol, atol)
        return
    if reference is None:
        return
    reference = np.asarray(reference)
    assert np.shape(output) == reference.shape, "shapes differ"
    if reference.dtype.kind in "OUS":
        np.testing.assert_array_equal(output, reference)
        return
    wide = np.complex128 if reference.dtype.kind == "c" else np.float64
    np.testing.assert_allclose(
        np.asarray(output).astype(wide), reference.astype(wide), rtol=rtol, atol=atol
    )


def unpacked(value):
    """An array; NumPy's scalars become arrays of no dimension."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value) if isinstance(value, np.generic) else value


def from_files(case):
    """Data sets of a case that is kept as files; `None` where a value is no tensor."""
    folder = Path(case.model_dir)
    model = onnx.load(folder / "model.onnx")
    sets = []
    for data in sorted(folder.glob("test_data_set_*")):
        values = []
        for kind in ("input", "output"):
            files = sorted(data.glob(f"{kind}_*.pb"), key=lambda p: int(p.stem.split("_")[1]))
            ports = model.graph.input if kind == "input" else model.graph.output
            part = []
            for file, port in zip(files, ports):
                if port.type.WhichOneof("value") != "tensor_type":
                    sequence = onnx.SequenceProto()
                    sequence.ParseFromString(file.read_bytes())
                    part.append(numpy_helper.to_list(sequence))
                else:
                    part.append(onnx.load_tensor(file))
            values.append(part)
        sets.append(tuple(values))
    return model, sets


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    cases = list(collect_testcases(None))
    for kind in ("simple", "pytorch-operator", "pytorch-converted"):
        cases += load_model_tests(kind=kind)
    entries = []
    for case in cases:
        if case.kind == "node" or case.model is not None:
            model, sets = case.model, case.data_sets
        else:
            model, sets = from_files(case)
        folder = out / case.name
        folder.mkdir(exist_ok=True)
        onnx.save(model, folder / "model.onnx")
        plain = [tuple([unpacked(v) for v in part] for part in data) for data in sets]
        entry = {
            "name": case.name,
            "kind": case.kind,
            "rtol": case.rtol,
            "atol": case.atol,
            "sets": len(sets),
        }
        entry["ops"] = sorted({node.op_type for node in model.graph.node})
        entry["runtime"] = runtime_says(model, plain, case.rtol, case.atol)
        for index, (inputs, expected) in enumerate(plain):
            suffix = "" if index == 0 else str(index)
            try:
                fed = zip(names(model.graph.input), inputs)
                write(folder / f"inputs{suffix}.safetensors", {k: array_of(v) for k, v in fed})
                given = zip(names(model.graph.output), expected)
                write(folder / f"expected{suffix}.safetensors", {k: array_of(v) for k, v in given})
            except NoTensor as kind:
                entry["no_tensor"] = str(kind)
        entries.append(entry)
    (out / "cases.json").write_text(json.dumps(entries, indent=1))
    passing = sum(entry["runtime"] == "passes" for entry in entries)
    print(f"{len(entries)} cases, of which ONNX Runtime {onnxruntime.__version__} passes {passing}")


if __name__ == "__main__":
    main()
