"""OpenVINO on the same work as Overdrive, as a process that Overdrive drives: one JSON request a line in, one answer out.

Overdrive hands over its graph as an ONNX file and its inputs as safetensors, alternates its own samples with the ones taken
here, and judges the outputs that this program writes against its own f64 reference; statistics, FLOPs and records are
Overdrive's. So this file only compiles a file for the processor, and reads the clocks.

Mode: `compile`; OpenVINO compiles whole graphs. Hints: latency, one stream, the threads that Overdrive has. The format of a
request is OpenVINO's inference precision; f32 is f32, which it would otherwise lower where the processor has bf16.
A request that cannot be met is answered with `unsupported` or `failed` and a sentence.
"""

import json
import math
import struct
import sys
import time

import numpy as np
import openvino as ov

STORED = {"F64": np.float64, "F32": np.float32, "F16": np.float16, "I64": np.int64, "I32": np.int32, "I16": np.int16,
          "I8": np.int8, "U64": np.uint64, "U32": np.uint32, "U16": np.uint16, "U8": np.uint8, "BOOL": np.bool_}
PRECISIONS = {"f32": ov.Type.f32, "bf16": ov.Type.bf16, "f16": ov.Type.f16}


class Unsupported(Exception):
    """What OpenVINO does not do."""


def read(path):
    """Arrays by name. The format is a length, a JSON header and the data; no package is needed."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    arrays = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        if entry["dtype"] not in STORED:
            raise Unsupported(f"NumPy has no elements of type {entry['dtype']}")
        count = math.prod(entry["shape"])
        flat = np.frombuffer(data, STORED[entry["dtype"]], count, entry["data_offsets"][0])
        arrays[name] = flat.reshape(entry["shape"]).copy()
    return arrays


def write(path, arrays, rows):
    """f32 arrays by name; of each only these rows, or all where `rows` is None."""
    header, at, parts = {}, 0, []
    for name, array in arrays.items():
        array = np.ascontiguousarray(array if rows is None else array[rows], dtype=np.float32)
        part = array.tobytes()
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [at, at + len(part)]}
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


class Ready:
    """A compiled file, with its inputs in place."""

    def __init__(self, request, core, threads):
        self.names, precision = request["inputs"], PRECISIONS.get(request["dtype"])
        if request["mode"] != "compile" or request.get("variant"):
            raise Unsupported("OpenVINO compiles whole graphs and has mode `compile` only")
        if precision is None:
            raise Unsupported(f"OpenVINO has no inference precision {request['dtype']}")
        start = time.perf_counter_ns()
        model = core.read_model(request["model"])
        self.load_ns = time.perf_counter_ns() - start
        hints = {"PERFORMANCE_HINT": "LATENCY", "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": precision}
        if threads:
            hints["INFERENCE_NUM_THREADS"] = threads
        start = time.perf_counter_ns()
        self.model = core.compile_model(model, "CPU", hints)
        self.compile_ns = time.perf_counter_ns() - start
        found = self.model.get_property("INFERENCE_PRECISION_HINT")
        if found != precision:
            raise Unsupported(f"on this processor OpenVINO computes in {found} where {precision} was asked for")
        self.request = self.model.create_infer_request()
        self.sets = [self.inputs(path) for path in request["sets"]]
        self.place(self.sets[0])
        start = time.perf_counter_ns()
        self.call()
        self.first_call_ns = time.perf_counter_ns() - start

    def inputs(self, path):
        arrays = read(path)
        return [arrays[name] for name in self.names]

    def place(self, arrays):
        """Inputs are read where they lie; the request keeps them alive."""
        self.current = arrays
        for name, array in zip(self.names, arrays):
            self.request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def call(self):
        self.request.infer(share_inputs=True, share_outputs=True)

    def outputs(self):
        return {str(i): self.request.get_output_tensor(i).data.copy() for i in range(len(self.model.outputs))}


class Server:
    """Answers requests until the input ends."""

    def __init__(self, threads):
        self.core, self.threads, self.ready, self.count = ov.Core(), threads, {}, 0

    def describe(self, _):
        threads = self.threads or self.core.get_property("CPU", "INFERENCE_NUM_THREADS")
        version = ov.get_version().split("-")[0]
        return {"version": version, "device": "cpu", "threads": threads, "modes": ["compile"], "reads": "onnx"}

    def knows(self, _):
        return {"known": True}

    def open(self, request):
        ready = Ready(request, self.core, self.threads)
        self.count += 1
        self.ready[self.count] = ready
        paid = {"load_ns": ready.load_ns, "compile_ns": ready.compile_ns, "first_call_ns": ready.first_call_ns}
        return {"id": self.count, **paid}

    def close(self, request):
        del self.ready[request["id"]]
        return {}

    def select(self, request):
        ready = self.ready[request["id"]]
        ready.place(ready.sets[request["set"]])
        return {}

    def call(self, request):
        self.ready[request["id"]].call()
        return {}

    def sample(self, request):
        ready = self.ready[request["id"]]
        start = time.perf_counter_ns()
        for _ in range(request["calls"]):
            ready.call()
        return {"host_ns": time.perf_counter_ns() - start}

    def run(self, request):
        """On inputs of their own, which the call must leave as they were."""
        ready = self.ready[request["id"]]
        before = ready.current
        ready.place(ready.inputs(request["inputs"]))
        try:
            copies = [array.copy() for array in ready.current]
            ready.call()
            write(request["outputs"], ready.outputs(), request["rows"])
            if any(not np.array_equal(a, b) for a, b in zip(copies, ready.current)):
                raise RuntimeError("the call changed its inputs")
        finally:
            ready.place(before)
        return {}

    def last(self, request):
        write(request["outputs"], self.ready[request["id"]].outputs(), request["rows"])
        return {}

    def answer(self, line):
        request = json.loads(line)
        try:
            return getattr(self, request["do"])(request)
        except Unsupported as error:
            return {"unsupported": str(error)}
        except Exception as error:  # Whatever OpenVINO raises is an outcome of this case, not the end of the run.
            return {"failed": f"{type(error).__name__}: {error}"[:2000]}


def main():
    answers, sys.stdout = sys.stdout, sys.stderr  # What libraries print must not be taken for an answer.
    device, threads = sys.argv[1], int(sys.argv[2])
    if device != "cpu":
        print(json.dumps({"unsupported": "this program measures OpenVINO on the processor only"}), file=answers, flush=True)
        return
    server = Server(threads)
    print(json.dumps(server.describe({})), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
