"""PyTorch on the same work as Overdrive, in the process that `overdrive_peer` describes.

This file only defines each workload in PyTorch, makes it ready in a mode, and reads the clocks.
`published_models` makes a workload that comes with a config in Hugging Face's format, and
`attention_variants` attention with a score or mask function, and with gradients.

Modes: `eager`; `jit` (torch.jit.trace); `compile` (torch.compile); `graph` (torch.compile with CUDA
graphs). Variants of `eager`: attention by one back end of scaled_dot_product_attention
(`sdpa-math`, `sdpa-flash`, `sdpa-cudnn`), rows by liger-kernel (`liger`). In bf16 and f16
parameters and inputs are of that type before the clock starts; f32 is f32 (no tf32).
"""

import contextlib
import functools
import importlib.util
import os
import time
import warnings

import torch
import torch.nn.functional as F
from attention_variants import (
    FUNCTIONS,
    GRADIENTS,
    Flexible,
    has_flex_attention,
    with_gradients,
)
from overdrive_peer import Ready, Unsupported, read, serve
from published_models import Cached, published

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16, "f64": torch.float64}
STORED = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


def tensor(stored, shape, data):
    """The tensor that was read, in place."""
    flat = (
        torch.frombuffer(data, dtype=STORED[stored])
        if len(data)
        else torch.empty(0, dtype=STORED[stored])
    )
    return flat.reshape(shape)


# Workloads: a function of the parameters by name and the inputs by name. Overdrive's weights are
# [in, out].


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
    "cross_entropy": lambda p, logits, targets: F.cross_entropy(
        logits, targets.long(), reduction="none"
    ),
    "causal attention": lambda p, q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    "attention": lambda p, q, k, v: F.scaled_dot_product_attention(q, k, v),
    "grouped attention": lambda p, q, k, v: F.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    ),
}
ATTENDING = {
    "transformer",
    "quick-inference",
    "quick-memory",
    "causal attention",
    "attention",
    "grouped attention",
}
# The ops that liger-kernel has kernels for.
ROWS = {"softmax", "layer_norm", "rms_norm", "cross_entropy"}


def by_liger(name):
    """The workload in liger-kernel."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction
    from liger_kernel.ops.softmax import LigerSoftmaxFunction

    return {
        "softmax": lambda p, x: LigerSoftmaxFunction.apply(x),
        "layer_norm": lambda p, x: LigerLayerNormFunction.apply(x, p["scale"], p["bias"], 1e-5),
        "rms_norm": lambda p, x: LigerRMSNormFunction.apply(x, p["scale"], 1e-5),
        # Class weights, ignored class, z-loss and smoothing are those of `F.cross_entropy`: none.
        "cross_entropy": lambda p, logits, targets: LigerCrossEntropyFunction.apply(
            logits, targets.long(), None, -100, 0.0, 0.0, "none"
        )[0],
    }[name]


SDPA = {"sdpa-math": "MATH", "sdpa-flash": "FLASH_ATTENTION", "sdpa-cudnn": "CUDNN_ATTENTION"}


def attention_by(variant):
    """Allows only this back end of scaled_dot_product_attention; any where the variant is none."""
    if variant not in SDPA:
        return contextlib.nullcontext()
    from torch.nn.attention import SDPBackend, sdpa_kernel

    return sdpa_kernel([getattr(SDPBackend, SDPA[variant])])


class Workload(torch.nn.Module):
    """A workload with its parameters, as torch.jit and torch.compile want it. The parameters are
    buffers of a module, which stay where they are."""

    def __init__(self, function, parameters):
        super().__init__()
        self.function, self.names = function, list(parameters)
        for i, parameter in enumerate(parameters.values()):
            self.register_buffer(f"parameter{i}", parameter)

    def forward(self, *inputs):
        return self.function(
            {name: getattr(self, f"parameter{i}") for i, name in enumerate(self.names)}, *inputs
        )


class Made(Ready):
    """A workload in a mode, with its inputs in place."""

    def __init__(self, request, torch_here):
        self.here, self.dtype, self.names = torch_here, DTYPES[request["dtype"]], request["inputs"]
        name, mode, self.variant = request["workload"], request["mode"], request.get("variant")
        forward = GRADIENTS.get(name, name)
        parameters = {
            key: self.place(tensor(*stored)) for key, stored in read(request["parameters"]).items()
        }
        if request.get("config"):
            eager = self.prepared(
                published(request["config"], parameters, (self.dtype, torch_here.device)), request
            )
            module = lambda: eager  # noqa: E731
        elif forward not in FUNCTIONS:
            function = by_liger(name) if self.variant == "liger" else WORKLOADS[forward]
            eager = functools.partial(function, parameters)
            module = functools.partial(Workload, function, parameters)
        self.sets = [torch_here.placed(path, self) for path in request["sets"]]
        self.use(self.sets[0])
        start = time.perf_counter_ns()
        if forward in FUNCTIONS:
            self.function = Flexible(forward, parameters, mode)
        else:
            # The gradient of the output is no input of the forward.
            count = len(self.names) - (forward != name)
            self.function = eager if mode == "eager" else self.made(module(), mode, count)
        if forward != name:
            self.function = with_gradients(self.function)
        compile_ns = time.perf_counter_ns() - start
        start = time.perf_counter_ns()
        self.first_call()
        self.paid = {"compile_ns": compile_ns, "first_call_ns": time.perf_counter_ns() - start}

    def prepared(self, outputs, request):
        """A published architecture as it is to run."""
        return outputs

    def made(self, module, mode, count):
        """The module, which takes the first `count` inputs, in a mode."""
        if mode == "jit":
            with torch.no_grad():
                return torch.jit.trace(module, self.given()[:count], check_trace=False)
        if mode == "compile":
            return torch.compile(module)
        if mode == "graph" and self.here.is_cuda:
            # Replays read the inputs where they are; otherwise each would copy them first.
            for given in (given for inputs in self.sets for given in inputs):
                torch._dynamo.mark_static_address(given)
            return torch.compile(module, mode="reduce-overhead")
        raise Unsupported(f"PyTorch has no mode {mode} on {self.here.device}")

    def first_call(self):
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            try:
                self.call()
                self.synchronize()
            except NotImplementedError as error:
                raise Unsupported(str(error)) from error
            except RuntimeError as error:
                # The back end that was asked for declines; it gives the reason only as a warning.
                if self.variant not in SDPA or not str(error).startswith(
                    ("No available kernel", "No viable backend")
                ):
                    raise
                reasons = dict.fromkeys(
                    str(warning.message).split(" (Triggered")[0] for warning in said
                )
                raise Unsupported(" ".join([str(error), *reasons])) from error

    def place(self, given):
        """On the device, in the workload's type, in memory of its own."""
        return given.to(
            self.here.device, self.dtype if given.is_floating_point() else given.dtype, copy=True
        )

    def inputs(self, path):
        tensors = read(path)
        return tuple(self.place(tensor(*tensors[name])) for name in self.names)

    def given(self):
        """The arguments of a call, by the current inputs."""
        return self.current

    def rewind(self):
        """Before a call that is timed."""

    @torch.no_grad()
    def call(self):
        with attention_by(self.variant):
            return self.function(*self.given())

    def synchronize(self):
        self.here.synchronize()

    def copies(self):
        return [given.clone() for given in self.current]

    def unchanged(self, copies):
        return all(torch.equal(a, b) for a, b in zip(copies, self.current))

    def outputs(self, rows):
        result = self.call()
        self.synchronize()
        parts = [result] if torch.is_tensor(result) else result
        if rows is not None:
            parts = [part[torch.tensor(rows, device=part.device)] for part in parts]
        return {
            str(i): part.detach().float().cpu().contiguous().numpy() for i, part in enumerate(parts)
        }

    # Cycles of a device's clock in a nanosecond, at most: a gate that is too long only takes time.
    CYCLES_PER_NS = 2.0

    def sample(self, calls):
        """Times by the host's clock and by the device's. On the device L2 is flushed before each
        call, and launches are hidden behind a gate."""
        if not self.here.is_cuda:
            return super().sample(calls)
        host_ns, device_ms = 0, 0.0
        for _ in range(calls):
            self.rewind()
            self.here.flush.zero_()
            torch.cuda.synchronize()
            began = time.perf_counter_ns()
            self.call()
            enqueued_ns = time.perf_counter_ns() - began
            torch.cuda.synchronize()
            host_ns += time.perf_counter_ns() - began
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            # The device spins until all of the call is in its queue, so that launches cost nothing
            # in between.
            torch.cuda._sleep(int(2 * enqueued_ns * self.CYCLES_PER_NS))
            self.here.flush.zero_()
            start.record()
            self.call()
            end.record()
            torch.cuda.synchronize()
            device_ms += start.elapsed_time(end)
        return {"host_ns": host_ns, "device_ns": int(device_ms * 1e6)}


# Ends of names of workloads: the last logits of a decoder that has a cache.
DECODED = (", first token", ", next token")


class Decoded(Made):
    """A token of a published decoder. The text before it is read once for inputs that are alike,
    outside of every call."""

    def prepared(self, outputs, request):
        self.decoder = Cached(outputs.model, request["workload"].endswith(DECODED[1]))
        return self.decoder

    def use(self, inputs):
        super().use(inputs)
        self.behind = self.decoder.start(inputs[0])

    def given(self):
        return self.behind

    def rewind(self):
        self.decoder.rewind()

    def outputs(self, rows):
        self.rewind()
        return super().outputs(rows)

    def sample(self, calls):
        if self.here.is_cuda:
            return super().sample(calls)
        host_ns = 0
        for _ in range(calls):
            self.rewind()
            start = time.perf_counter_ns()
            self.call()
            host_ns += time.perf_counter_ns() - start
        return {"host_ns": host_ns}

    def made(self, module, mode, count):
        if mode == "jit":
            raise Unsupported("torch.jit traces no cache that a call writes to")
        if mode == "graph" and self.here.is_cuda:
            for given in self.given():
                torch._dynamo.mark_static_address(given)
        return super().made(module, mode, count)


class Torch:
    """The framework on a device."""

    full = torch.OutOfMemoryError
    # Sets of inputs that stay where they were put. Every mode of a workload is given the same
    # sets.
    KEPT = 2

    def __init__(self, device, threads):
        self.device, self.kept, self.flush = torch.device(device), {}, None
        self.is_cuda = self.device.type == "cuda"
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.benchmark = True
        if threads:
            torch.set_num_threads(threads)
        if self.is_cuda:
            if not torch.cuda.is_available():
                raise Unsupported("this PyTorch finds no GPU")
            properties = torch.cuda.get_device_properties(self.device)
            self.flush = torch.empty(
                2 * properties.L2_cache_size, dtype=torch.int8, device=self.device
            )

    def synchronize(self):
        if self.is_cuda:
            torch.cuda.synchronize()

    def placed(self, path, ready):
        """Inputs of a file, as the workload has them; they are put in place once."""
        status = os.stat(path)
        key = (path, status.st_ino, status.st_mtime_ns, status.st_size, ready.dtype, *ready.names)
        if key not in self.kept:
            while len(self.kept) >= self.KEPT:
                self.kept.pop(next(iter(self.kept)))
            self.kept[key] = ready.inputs(path)
        return self.kept[key]

    def describe(self):
        name = torch.cuda.get_device_name(self.device) if self.is_cuda else "cpu"
        return {"version": torch.__version__, "device": name, "threads": torch.get_num_threads()}

    def knows(self, request):
        name, variants = request["workload"], []
        if request.get("config"):
            return {"known": True, "by": "transformers"}
        forward = GRADIENTS.get(name, name)
        if forward in ATTENDING:
            variants += [variant for variant in SDPA if self.is_cuda or variant != "sdpa-cudnn"]
        if name in ROWS and self.is_cuda and importlib.util.find_spec("liger_kernel"):
            variants.append("liger")
        known = forward in WORKLOADS or forward in FUNCTIONS and has_flex_attention()
        return {"known": known, "variants": variants}

    def open(self, request):
        made = Decoded if request["workload"].endswith(DECODED) else Made
        return made(request, self)

    def closed(self):
        torch.compiler.reset()
        if self.is_cuda:
            torch.cuda.empty_cache()


if __name__ == "__main__":
    serve(Torch)
