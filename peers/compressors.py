#!/usr/bin/env python3
"""An ONNX model by another program's quantization, beside the float model and beside `overdrive
optimize`, on the same inputs, in ONNX Runtime.

    pip install onnx onnxruntime sympy nncf
    pip install onnx-neural-compressor prettytable psutil pydantic py-cpuinfo
    python3 -P peers/compressors.py nncf MODEL.onnx OUT [--shape batch=1] [--threads 2]

-P keeps peers/openvino.py from being taken for the package that NNCF imports.

With nncf, its post-training quantization.
With neural-compressor, its autotune over static, SmoothQuant and dynamic int8, by the cosine below.
With onnxruntime, its static quantizer in QDQ format, by channel. Olive's pass calls it too.

Each calibrates on random normal inputs, or on random ids. It is judged on others, by the cosine of
its outputs to those of the float model. Times are medians of calls of both in alternation. OUT gets
quantized.onnx and figures.json.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
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


class Reader:
    """Samples as ONNX Runtime's quantizer reads them, from the first on again after `rewind`."""

    def __init__(self, samples):
        self.samples = samples
        self.rewind()

    def rewind(self):
        self.left = iter(self.samples)

    def get_next(self):
        return next(self.left, None)


def by_nncf(model, samples, path, lost):
    import nncf

    seen = nncf.Dataset(samples)
    onnx.save(nncf.quantize(onnx.load(model), seen, subset_size=len(samples)), path)


def by_neural_compressor(model, samples, path, lost):
    from onnx_neural_compressor import data_reader
    from onnx_neural_compressor.quantization import config, tuning

    class Calibration(Reader, data_reader.CalibrationDataReader):
        pass

    calibration = Calibration(samples)
    configs = [
        config.StaticQuantConfig(calibration_data_reader=calibration, per_channel=True),
        config.StaticQuantConfig(
            calibration_data_reader=calibration, extra_options={"SmoothQuant": True}
        ),
        config.DynamicQuantConfig(per_channel=True),
    ]
    # It asserts that every node has a name of its own.
    named, prepared = onnx.load(model), path.with_name("prepared.onnx")
    for number, node in enumerate(named.graph.node):
        node.name = node.name or f"node{number}"
    onnx.save(named, prepared)
    tuned = tuning.autotune(
        model_input=str(prepared),
        tune_config=tuning.TuningConfig(config_set=configs, tolerable_loss=0.005),
        eval_fn=lambda quantized: 1 - lost(quantized),
        calibration_data_reader=calibration,
    )
    onnx.save(tuned, path)


def by_onnxruntime(model, samples, path, lost):
    from onnxruntime.quantization import CalibrationDataReader, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    class Calibration(Reader, CalibrationDataReader):
        pass

    prepared = path.with_name("prepared.onnx")
    quant_pre_process(str(model), str(prepared))
    quantize_static(str(prepared), str(path), Calibration(samples), per_channel=True)


PROGRAMS = {
    "nncf": by_nncf,
    "neural-compressor": by_neural_compressor,
    "onnxruntime": by_onnxruntime,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", choices=sorted(PROGRAMS))
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
    samples, judged = [draw() for _ in range(arguments.samples)], [draw() for _ in range(16)]
    wanted = [float_session.run(None, x)[0] for x in judged]

    def lost(model):
        session = session_of(model, arguments.threads)
        similar = [cosine(y, session.run(None, x)[0]) for x, y in zip(judged, wanted)]
        return 1 - float(np.mean(similar))

    start, path = time.time(), arguments.out / "quantized.onnx"
    PROGRAMS[arguments.program](arguments.model, samples, path, lost)
    seconds, session = time.time() - start, session_of(path, arguments.threads)
    times = {"float": [], "quantized": []}
    for call in range(arguments.calls):
        for name, engine in [("float", float_session), ("quantized", session)]:
            start = time.perf_counter()
            engine.run(None, judged[call % len(judged)])
            times[name].append(1e3 * (time.perf_counter() - start))
    figures = {
        "float_ms": float(np.median(times["float"])),
        "quantized_ms": float(np.median(times["quantized"])),
        "lost_cosine": lost(path),
        "bytes": path.stat().st_size,
        "float_bytes": arguments.model.stat().st_size,
        "search_s": seconds,
    }
    (arguments.out / "figures.json").write_text(json.dumps(figures, indent=1))
    print(json.dumps(figures))


main()
