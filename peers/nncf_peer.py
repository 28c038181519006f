#!/usr/bin/env python3
"""The result of NNCF's post-training quantization of an ONNX model, beside the float model and
beside `overdrive optimize`, on the same inputs, in ONNX Runtime.

    pip install nncf onnx onnxruntime
    python3 -P peers/nncf_peer.py MODEL.onnx OUT [--shape batch=1] [--threads 2] [--samples 64]

-P keeps peers/openvino.py from being taken for the package that NNCF imports.

NNCF calibrates on random normal inputs, or on random ids. It is judged on others, by the cosine of
its outputs to those of the float model. Times are medians of calls of both in alternation. OUT gets
quantized.onnx and figures.json.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import nncf
import onnx
import onnxruntime


def inputs(session, sizes, random, vocabulary):
    made = {}
    for port in session.get_inputs():
        shape = [n if isinstance(n, int) else sizes.get(n, 1) for n in port.shape]
        if "float" in port.type:
            made[port.name] = random.standard_normal(shape).astype(np.float32)
        else:
            dtype = np.int32 if "32" in port.type else np.int64
            made[port.name] = random.integers(1, vocabulary, shape).astype(dtype)
            if port.name == "mask":
                made[port.name] = np.ones(shape, dtype)
    return made


def session_of(path, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def cosine(a, b):
    a, b = a.ravel().astype(np.float64), b.ravel().astype(np.float64)
    return float(a @ b / np.sqrt((a @ a) * (b @ b)))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", action="append", default=[])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--samples", type=int, default=64)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--vocabulary", type=int, default=30000)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    sizes = {name: int(size) for name, size in (s.split("=") for s in arguments.shape)}
    random = np.random.default_rng(7)
    float_session = session_of(arguments.model, arguments.threads)
    draw = lambda: inputs(float_session, sizes, random, arguments.vocabulary)
    start = time.time()
    seen = nncf.Dataset([draw() for _ in range(arguments.samples)])
    quantized = nncf.quantize(onnx.load(arguments.model), seen, subset_size=arguments.samples)
    path = arguments.out / "quantized.onnx"
    onnx.save(quantized, path)
    seconds = time.time() - start
    session = session_of(path, arguments.threads)
    judged = [draw() for _ in range(16)]
    similar = [cosine(float_session.run(None, x)[0], session.run(None, x)[0]) for x in judged]
    times = {"float": [], "nncf": []}
    for call in range(arguments.calls):
        for name, engine in [("float", float_session), ("nncf", session)]:
            start = time.perf_counter()
            engine.run(None, judged[call % len(judged)])
            times[name].append(1e3 * (time.perf_counter() - start))
    figures = {
        "float_ms": float(np.median(times["float"])),
        "nncf_ms": float(np.median(times["nncf"])),
        "lost_cosine": 1 - float(np.mean(similar)),
        "bytes": path.stat().st_size,
        "float_bytes": arguments.model.stat().st_size,
        "search_s": seconds,
    }
    (arguments.out / "figures.json").write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures))


main()
