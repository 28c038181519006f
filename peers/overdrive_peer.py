"""The common part of the programs of other frameworks that Overdrive drives. Each line of input is
one JSON request, and each line of output one answer.

Overdrive draws inputs and parameters, and writes them as safetensors. It alternates its own samples
with the ones taken here. It judges the outputs that are written here against its own f64 reference.
Statistics, FLOPs and records are Overdrive's.

A program gives `serve` a framework, which has:

- `describe()` and `knows(request)`;
- `open(request)`, whose result is a `Ready`;
- `closed()`, which is called when a `Ready` was let go;
- `full`, the exception that it raises when the device's memory is used up.

A request that cannot be met is answered with `unsupported`, `out_of_memory` or `failed` and a
sentence.
"""

import json
import mmap
import struct
import sys
import time


class Unsupported(Exception):
    """A request that a framework, or this installation of it, cannot meet."""


def read(path):
    """Tensors by name, each as type, shape and bytes. The format is a length, a JSON header and the
    data, so no package is needed. The bytes are the file's own pages: none is read before it is
    asked for, and writing to them does not change the file.
    """
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        start = file.tell()
        data = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY))[start:]
    header.pop("__metadata__", None)
    return {
        name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


def write(path, arrays):
    """Arrays of NumPy by name, as f32."""
    header, at, parts = {}, 0, []
    for name, array in arrays.items():
        part = array.astype("float32").tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(array.shape),
            "data_offsets": [at, at + len(part)],
        }
        at += len(part)
        parts.append(part)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(parts))


class Ready:
    """A workload in a mode. A derived class fills `sets` with inputs, and `paid` with the costs
    that were paid once. Its `use` makes inputs the current ones."""

    def call(self):
        raise NotImplementedError

    def synchronize(self):
        """Waits for the call. Libraries that return when they are done need no such wait."""

    def inputs(self, path):
        """Inputs of a file, in the order of the workload's inputs."""
        raise NotImplementedError

    def use(self, inputs):
        self.current = inputs

    def copies(self):
        """Copies of the current inputs."""
        raise NotImplementedError

    def unchanged(self, copies):
        """Whether the current inputs still equal those copies."""
        raise NotImplementedError

    def outputs(self, rows):
        """Outputs of one more call by name, as arrays of NumPy. Each has only these rows, or
        all where the rows are None."""
        raise NotImplementedError

    def sample(self, calls):
        start = time.perf_counter_ns()
        for _ in range(calls):
            self.call()
        return {"host_ns": time.perf_counter_ns() - start}

    def close(self):
        """Lets go of what no garbage collector sees."""


class Server:
    """Answers requests."""

    def __init__(self, framework):
        self.framework, self.ready, self.count = framework, {}, 0

    def describe(self, _):
        return self.framework.describe()

    def knows(self, request):
        return self.framework.knows(request)

    def open(self, request):
        ready = self.framework.open(request)
        self.count += 1
        self.ready[self.count] = ready
        return {"id": self.count, **ready.paid}

    def close(self, request):
        self.ready.pop(request["id"]).close()
        self.framework.closed()
        return {}

    def select(self, request):
        ready = self.ready[request["id"]]
        ready.use(ready.sets[request["set"]])
        return {}

    def call(self, request):
        ready = self.ready[request["id"]]
        ready.call()
        ready.synchronize()
        return {}

    def sample(self, request):
        return self.ready[request["id"]].sample(request["calls"])

    def run(self, request):
        """Uses inputs of its own, which the call must leave as they were."""
        ready = self.ready[request["id"]]
        before = ready.current
        ready.use(ready.inputs(request["inputs"]))
        try:
            copies = ready.copies()
            write(request["outputs"], ready.outputs(request["rows"]))
            if not ready.unchanged(copies):
                raise RuntimeError("the call changed its inputs")
        finally:
            ready.use(before)
        return {}

    def last(self, request):
        write(request["outputs"], self.ready[request["id"]].outputs(request["rows"]))
        return {}

    def answer(self, line):
        request = json.loads(line)
        try:
            return getattr(self, request["do"])(request)
        except Unsupported as error:
            return {"unsupported": str(error)[:2000]}
        except self.framework.full as error:
            return {"out_of_memory": str(error)[:2000]}
        # Whatever a framework raises is an outcome of this case, not the end of the run.
        except Exception as error:
            return {"failed": f"{type(error).__name__}: {error}"[:2000]}


def serve(start):
    """Answers until the input ends. `start` makes the framework for a device and a number of
    threads."""
    answers, sys.stdout = (
        sys.stdout,
        sys.stderr,
    )  # What libraries print must not be taken for an answer.
    say = lambda answer: print(json.dumps(answer), file=answers, flush=True)  # noqa: E731
    try:
        server = Server(start(sys.argv[1], int(sys.argv[2])))
    except Unsupported as error:
        return say({"unsupported": str(error)})
    say(server.describe({}))
    for line in sys.stdin:
        say(server.answer(line))
