"""PyTorch on the same work as Overdrive, as a process that Overdrive drives: one JSON request a line in, one answer out.

Overdrive draws inputs and parameters, writes them as safetensors, alternates its own samples with the ones taken here, and
judges the outputs that this program writes against its own f64 reference; statistics, FLOPs and records are Overdrive's.
So this file only says what each workload is in PyTorch, makes it ready in a mode, and reads the clocks.

Modes: `eager`; `jit` (torch.jit.trace); `compile` (torch.compile); `graph` (torch.compile with CUDA graphs). Variants of
`eager`: attention by one back end of scaled_dot_product_attention (`sdpa-math`, `sdpa-flash`, `sdpa-cudnn`), rows by
liger-kernel (`liger`). In bf16 and f16 parameters and inputs are of that type before the clock starts; f32 is f32 (no tf32).
A request that cannot be met is answered with `unsupported`, `out_of_memory` or `failed` and a sentence.
"""

import contextlib
import functools
import json
import math
import os
import struct
import sys
import time

import torch
import torch.nn.functional as F

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
STORED = {"F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
          "I64": torch.int64, "I32": torch.int32, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool}


class Unsupported(Exception):
    """What PyTorch, or this installation of it, does not do."""


def read(path):
    """Tensors by name. The format is a length, a JSON header and the data; no package is needed."""
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        first, end = entry["data_offsets"]
        dtype = STORED[entry["dtype"]]
        if first == end:
            tensors[name] = torch.empty(entry["shape"], dtype=dtype)
            continue
        flat = torch.frombuffer(data, dtype=dtype, count=math.prod(entry["shape"]), offset=first)
        tensors[name] = flat.reshape(entry["shape"]).clone()
    return tensors


def write(path, tensors, rows):
    """f32 tensors by name; of each only these rows, or all where `rows` is None."""
    header, at, parts = {}, 0, []
    for name, tensor in tensors.items():
        if rows is not None:
            tensor = tensor[torch.tensor(rows, device=tensor.device)]
        part = tensor.detach().float().cpu().contiguous().numpy().tobytes()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [at, at + len(part)]}
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


# Workloads: a function of the parameters by name and the inputs by name. Overdrive's weights are [in, out].


def linear(p, name, x):
    return F.linear(x, p[name + ".weight"].t(), p[name + ".bias"])


def mlp(p, x):
    layers = sum(name.endswith(".weight") for name in p)
    for layer in range(1, layers + 1):
        x = linear(p, f"fc{layer}", x)
        x = F.gelu(x) if layer < layers else x
    return x


def conv(p, x):
    for name, stride in [("conv1", 1), ("conv2", 2)]:
        norm = [p[f"{name}.norm.{part}"] for part in ("mean", "variance", "scale", "bias")]
        x = F.conv2d(x, p[name + ".weight"], stride=stride, padding=1)
        x = F.relu(F.batch_norm(x, *norm, training=False, eps=1e-5))
    return linear(p, "head", x.mean((2, 3)))


def transformer(p, x, heads=8):
    batch, t, d = x.shape

    def norm(x, name):
        return F.layer_norm(x, (d,), p[name + ".scale"], p[name + ".bias"], 1e-5)

    def split(x, name):
        return linear(p, name, x).view(batch, t, heads, d // heads).transpose(1, 2)

    for block in range(sum(name.endswith(".norm1.scale") for name in p)):
        at = f"block{block}."
        h = norm(x, at + "norm1")
        parts = [split(h, f"{at}attention.{part}") for part in ("query", "key", "value")]
        h = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + linear(p, at + "attention.projection", h.transpose(1, 2).reshape(batch, t, d))
        h = F.gelu(linear(p, at + "ffn.expand", norm(x, at + "norm2")), approximate="tanh")
        x = x + linear(p, at + "ffn.contract", h)
    return x


def chain(p, x):
    h = torch.abs(x * 1.5 + 0.25)
    h = torch.maximum(h - x, torch.full_like(x, -0.5)) * x
    return torch.minimum(h, torch.full_like(x, 2.0)) + x


def rms_norm(p, x):
    return F.rms_norm(x, (x.shape[-1],), p["scale"], 1e-5)


def layer_norm(p, x):
    return F.layer_norm(x, (x.shape[-1],), p["scale"], p["bias"], 1e-5)


WORKLOADS = {
    "mlp": mlp,
    "conv": conv,
    "transformer": transformer,
    "quick-inference": transformer,
    "quick-memory": transformer,
    "matmul": lambda p, a, b: a @ b,
    "linear": lambda p, x: x @ p["w"],
    "linear+gelu": lambda p, x: F.gelu(torch.addmm(p["bias"], x, p["w"]), approximate="tanh"),
    "chain of 8": chain,
    "copy": lambda p, x: x.clone(),
    "softmax": lambda p, x: F.softmax(x, -1),
    "layer_norm": layer_norm,
    "rms_norm": rms_norm,
    "cross_entropy": lambda p, logits, targets: F.cross_entropy(logits, targets.long(), reduction="none"),
    "causal attention": lambda p, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "attention": lambda p, q, k, v: F.scaled_dot_product_attention(q, k, v),
}
ATTENDING = {"transformer", "quick-inference", "quick-memory", "causal attention", "attention"}


def by_liger(name):
    """The workload in liger-kernel."""
    try:
        from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
        from liger_kernel.ops.layer_norm import LigerLayerNormFunction
        from liger_kernel.ops.rms_norm import LigerRMSNormFunction
        from liger_kernel.ops.softmax import LigerSoftmaxFunction
    except ImportError as error:
        raise Unsupported(f"liger-kernel is not installed: {error}") from error
    ours = {
        "softmax": lambda p, x: LigerSoftmaxFunction.apply(x),
        "layer_norm": lambda p, x: LigerLayerNormFunction.apply(x, p["scale"], p["bias"], 1e-5),
        "rms_norm": lambda p, x: LigerRMSNormFunction.apply(x, p["scale"], 1e-5),
        # Class weights, ignored class, z-loss and smoothing are those of `F.cross_entropy`: none.
        "cross_entropy": lambda p, logits, targets: LigerCrossEntropyFunction.apply(
            logits, targets.long(), None, -100, 0.0, 0.0, "none"
        )[0],
    }
    if name not in ours:
        raise Unsupported(f"liger-kernel has no {name}")
    return ours[name]


def attention_by(variant):
    """Only this back end of scaled_dot_product_attention."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    backends = {"sdpa-math": "MATH", "sdpa-flash": "FLASH_ATTENTION", "sdpa-cudnn": "CUDNN_ATTENTION"}
    return sdpa_kernel([getattr(SDPBackend, backends[variant])])


class Workload(torch.nn.Module):
    """A workload with its parameters, as torch.jit and torch.compile want it: buffers of a module stay where they are."""

    def __init__(self, function, parameters):
        super().__init__()
        self.function, self.names = function, list(parameters)
        for i, tensor in enumerate(parameters.values()):
            self.register_buffer(f"parameter{i}", tensor)

    def forward(self, *inputs):
        return self.function({name: getattr(self, f"parameter{i}") for i, name in enumerate(self.names)}, *inputs)


class Ready:
    """A workload in a mode, with its inputs in place."""

    def __init__(self, request, device, files):
        self.device, self.dtype, self.names = device, DTYPES[request["dtype"]], request["inputs"]
        name, mode, self.variant = request["workload"], request["mode"], request.get("variant")
        if name not in WORKLOADS:
            raise Unsupported(f"{name} is not written down for PyTorch")
        if self.variant and self.variant.startswith("sdpa-") and name not in ATTENDING:
            raise Unsupported(f"{name} has no attention")
        function = by_liger(name) if self.variant == "liger" else WORKLOADS[name]
        self.files = files
        parameters = {key: self.place(tensor) for key, tensor in read(request["parameters"]).items()}
        self.sets = [self.inputs(path) for path in request["sets"]]
        self.current = self.sets[0]
        start = time.perf_counter_ns()
        self.function = self.made((function, parameters), mode)
        self.compile_ns = time.perf_counter_ns() - start
        start = time.perf_counter_ns()
        self.call()
        self.synchronize()
        self.first_call_ns = time.perf_counter_ns() - start

    def made(self, parts, mode):
        if mode == "eager":
            return functools.partial(*parts)
        if mode == "jit":
            return torch.jit.trace(Workload(*parts), self.current, check_trace=False)
        if mode == "compile":
            return torch.compile(Workload(*parts))
        if mode == "graph" and self.device.type == "cuda":
            # Replays read the inputs where they are; otherwise each would copy them first.
            for tensor in (tensor for inputs in self.sets for tensor in inputs):
                torch._dynamo.mark_static_address(tensor)
            return torch.compile(Workload(*parts), mode="reduce-overhead")
        raise Unsupported(f"PyTorch has no mode {mode} on {self.device}")

    def place(self, tensor):
        tensor = tensor.to(self.dtype) if tensor.is_floating_point() else tensor
        return tensor.to(self.device)

    def inputs(self, path):
        tensors = self.files.tensors(path)
        return tuple(self.place(tensors[name]) for name in self.names)

    @torch.no_grad()
    def call(self):
        one = attention_by(self.variant) if self.variant and self.variant.startswith("sdpa-") else contextlib.nullcontext()
        with one:
            return self.function(*self.current)

    def synchronize(self):
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def outputs(self):
        result = self.call()
        self.synchronize()
        return {"0": result} if torch.is_tensor(result) else {str(i): part for i, part in enumerate(result)}


class Files:
    """Inputs as they were last read: every way in which a workload runs is given the same files."""

    KEPT = 2

    def __init__(self):
        self.known = {}

    def tensors(self, path):
        status = os.stat(path)
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if self.known.get(path, (None,))[0] != version:
            self.known.pop(path, None)
            while len(self.known) >= self.KEPT:
                self.known.pop(next(iter(self.known)))
            self.known[path] = (version, read(path))
        return self.known[path][1]


class Clocks:
    """The host's clock, and the device's with its L2 flushed before each call and launches hidden behind a gate."""

    # Cycles of a device's clock in a nanosecond, at most: a gate that is too long only takes time.
    CYCLES_PER_NS = 2.0

    def __init__(self, device):
        self.flush = None
        if device.type == "cuda":
            properties = torch.cuda.get_device_properties(device)
            self.flush = torch.empty(2 * properties.L2_cache_size, dtype=torch.int8, device=device)

    def sample(self, ready, calls):
        if self.flush is None:
            start = time.perf_counter_ns()
            for _ in range(calls):
                ready.call()
            return {"host_ns": time.perf_counter_ns() - start}
        host_ns, device_ms = 0, 0.0
        for _ in range(calls):
            self.flush.zero_()
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            ready.call()
            enqueued_ns = time.perf_counter_ns() - began
            torch.cuda.synchronize()
            host_ns += time.perf_counter_ns() - began
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # The device spins until all of the call is in its queue, so that launches cost nothing in between.
            torch.cuda._sleep(int(2 * enqueued_ns * self.CYCLES_PER_NS))
            self.flush.zero_()
            start.record()
            ready.call()
            end.record()
            torch.cuda.synchronize()
            device_ms += start.elapsed_time(end)
        return {"host_ns": host_ns, "device_ns": int(device_ms * 1e6)}


class Server:
    """Answers requests until the input ends."""

    def __init__(self, device, threads):
        self.device, self.ready, self.count, self.files = torch.device(device), {}, 0, Files()
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        if threads:
            torch.set_num_threads(threads)
        if self.device.type == "cuda" and not torch.cuda.is_available():
            raise Unsupported("this PyTorch finds no GPU")
        self.clocks = Clocks(self.device)

    def describe(self, _):
        cuda = self.device.type == "cuda"
        name = torch.cuda.get_device_name(self.device) if cuda else "cpu"
        return {"version": torch.__version__, "device": name, "threads": torch.get_num_threads()}

    def knows(self, request):
        return {"known": request["workload"] in WORKLOADS}

    def open(self, request):
        ready = Ready(request, self.device, self.files)
        self.count += 1
        self.ready[self.count] = ready
        return {"id": self.count, "compile_ns": ready.compile_ns, "first_call_ns": ready.first_call_ns}

    def close(self, request):
        del self.ready[request["id"]]
        torch.compiler.reset()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return {}

    def select(self, request):
        ready = self.ready[request["id"]]
        ready.current = ready.sets[request["set"]]
        return {}

    def call(self, request):
        ready = self.ready[request["id"]]
        ready.call()
        ready.synchronize()
        return {}

    def sample(self, request):
        return self.clocks.sample(self.ready[request["id"]], request["calls"])

    def run(self, request):
        """On inputs of their own, which the call must leave as they were."""
        ready = self.ready[request["id"]]
        before, ready.current = ready.current, ready.inputs(request["inputs"])
        try:
            copies = [tensor.clone() for tensor in ready.current]
            write(request["outputs"], ready.outputs(), request["rows"])
            if any(not torch.equal(a, b) for a, b in zip(copies, ready.current)):
                raise RuntimeError("the call changed its inputs")
        finally:
            ready.current = before
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
        except torch.OutOfMemoryError as error:
            return {"out_of_memory": str(error)}
        except Exception as error:  # Whatever PyTorch raises is an outcome of this case, not the end of the run.
            return {"failed": f"{type(error).__name__}: {error}"[:2000]}


def main():
    answers, sys.stdout = sys.stdout, sys.stderr  # What libraries print must not be taken for an answer.
    device, threads = sys.argv[1], int(sys.argv[2])
    try:
        server = Server(device, threads)
    except Unsupported as error:
        print(json.dumps({"unsupported": str(error)}), file=answers, flush=True)
        return
    print(json.dumps(server.describe({})), file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(server.answer(line)), file=answers, flush=True)


if __name__ == "__main__":
    main()
