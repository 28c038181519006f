"""OpenVINO on the same work as Overdrive, in the process that `overdrive_peer` describes.

Overdrive hands over its graph as an ONNX file and its inputs as safetensors. So this program only
compiles the file for the processor and reads the clock.

Mode: `compile`; OpenVINO compiles whole graphs. Hints: latency, one stream, as many threads as
Overdrive has. The format of a request is OpenVINO's inference precision. f32 stays f32, although
OpenVINO would lower it by default where the processor has bf16.
"""

import time

import numpy as np
import openvino as ov
from overdrive_peer import Ready, Unsupported, read, serve

STORED = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
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
PRECISIONS = {"f32": ov.Type.f32, "bf16": ov.Type.bf16, "f16": ov.Type.f16}


class Compiled(Ready):
    """A compiled file, with its inputs in place."""

    def __init__(self, request, core, threads):
        self.names, precision = request["inputs"], PRECISIONS.get(request["dtype"])
        if request["mode"] != "compile" or request.get("variant"):
            raise Unsupported("OpenVINO compiles whole graphs and has mode `compile` only")
        if precision is None:
            raise Unsupported(f"OpenVINO has no inference precision {request['dtype']}")
        start = time.perf_counter_ns()
        model = core.read_model(request["model"])
        load_ns = time.perf_counter_ns() - start
        hints = {
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "INFERENCE_PRECISION_HINT": precision,
        }
        if threads:
            hints["INFERENCE_NUM_THREADS"] = threads
        start = time.perf_counter_ns()
        self.model = core.compile_model(model, "CPU", hints)
        compile_ns = time.perf_counter_ns() - start
        found = self.model.get_property("INFERENCE_PRECISION_HINT")
        if found != precision:
            raise Unsupported(
                f"on this processor OpenVINO computes in {found} where {precision} was asked for"
            )
        self.request = self.model.create_infer_request()
        self.sets = [self.inputs(path) for path in request["sets"]]
        self.use(self.sets[0])
        start = time.perf_counter_ns()
        self.call()
        self.paid = {
            "load_ns": load_ns,
            "compile_ns": compile_ns,
            "first_call_ns": time.perf_counter_ns() - start,
        }

    def inputs(self, path):
        tensors = read(path)
        return [self.array(*tensors[name]) for name in self.names]

    @staticmethod
    def array(stored, shape, data):
        if stored not in STORED:
            raise Unsupported(f"NumPy has no elements of type {stored}")
        return np.frombuffer(data, STORED[stored]).reshape(shape).copy()

    def use(self, inputs):
        """Gives the request the inputs in place; the request keeps them alive."""
        super().use(inputs)
        for name, array in zip(self.names, inputs):
            self.request.set_tensor(name, ov.Tensor(array, shared_memory=True))

    def call(self):
        self.request.infer(share_inputs=True, share_outputs=True)

    def copies(self):
        return [array.copy() for array in self.current]

    def unchanged(self, copies):
        return all(np.array_equal(a, b) for a, b in zip(copies, self.current))

    def outputs(self, rows):
        self.call()
        arrays = [self.request.get_output_tensor(i).data for i in range(len(self.model.outputs))]
        return {str(i): array if rows is None else array[rows] for i, array in enumerate(arrays)}


class OpenVino:
    """The framework on this processor."""

    full = MemoryError

    def __init__(self, device, threads):
        if device != "cpu":
            raise Unsupported("this program measures OpenVINO on the processor only")
        self.core, self.threads = ov.Core(), threads

    def describe(self):
        threads = self.threads or self.core.get_property("CPU", "INFERENCE_NUM_THREADS")
        version = ov.get_version().split("-")[0]
        return {
            "version": version,
            "device": "cpu",
            "threads": threads,
            "modes": ["compile"],
            "reads": "onnx",
        }

    def knows(self, _):
        return {"known": True}

    def open(self, request):
        return Compiled(request, self.core, self.threads)

    def closed(self):
        pass


serve(OpenVino)
