"""PyTorch on several devices, in the process that `overdrive_peer` describes. It has a process for
each rank (`distributed_ranks`), hands them each request, and answers with the slowest rank's time.

    distributed.py cuda|cpu RANKS

A part is opened with its name, a number of ranks and sizes; each number has processes of its own. A
part ends its processes with its reason if it fails on several ranks, or answers later than
BUDGET_S. The next part has new ones. On one rank nothing waits for a part that failed, and others
stay open. BUDGET_S is 150 unless the environment has OVERDRIVE_PART_SECONDS.
"""

import multiprocessing
import multiprocessing.connection
import os
import socket
import sys
import time

import torch
from overdrive_peer import Ready, Unsupported, serve

BUDGET_S = float(os.environ.get("OVERDRIVE_PART_SECONDS", "150"))


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Failed(Exception):
    """A rank's failure, in its words."""


class Gone(Failed):
    """A rank's failure without an answer."""


class Processes:
    """The processes of some ranks that are all of a run."""

    def __init__(self, device, ranks):
        import distributed_ranks

        spawn = multiprocessing.get_context("spawn")
        self.pipes, self.processes, port = [], [], free_port()
        for rank in range(ranks):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(
                target=distributed_ranks.work, args=(rank, ranks, device, port, theirs), daemon=True
            )
            process.start()
            theirs.close()
            self.pipes.append(ours)
            self.processes.append(process)

    def ask(self, *message):
        """The answers of all ranks."""
        for pipe in self.pipes:
            pipe.send(message)
        answers, end = [None] * len(self.pipes), time.monotonic() + BUDGET_S
        waiting = {pipe: rank for rank, pipe in enumerate(self.pipes)}
        while waiting:
            ready = multiprocessing.connection.wait(list(waiting), end - time.monotonic())
            if not ready:
                raise Gone(f"ranks {sorted(waiting.values())} did not answer in {BUDGET_S:.0f} s")
            for pipe in ready:
                rank = waiting.pop(pipe)
                try:
                    kind, answer = pipe.recv()
                except EOFError:
                    raise Gone(f"the process of rank {rank} ended") from None
                if kind == "out_of_memory":
                    raise torch.OutOfMemoryError(f"rank {rank}: {answer}")
                if kind == "failed":
                    raise Failed(f"rank {rank}: {answer}")
                answers[rank] = answer
        return answers

    def end(self):
        for process in self.processes:
            process.kill()
            process.join()


class Part(Ready):
    """An open part on some ranks."""

    def __init__(self, here, request):
        self.here, self.ranks, self.number = here, request["ranks"], here.number()
        start = time.perf_counter_ns()
        answers = self.ask("open", request["part"], request["sizes"])
        self.paid = {"first_call_ns": time.perf_counter_ns() - start, **answers[0]}

    def ask(self, verb, *rest):
        return self.here.ask(self.ranks, verb, self.number, *rest)

    def sample(self, calls):
        return {"host_ns": max(self.ask("sample", calls))}

    def close(self):
        self.ask("close")


class Ranks:
    """The framework on several devices."""

    full = torch.OutOfMemoryError

    def __init__(self, device, ranks):
        import torch.distributed as dist

        found = torch.cuda.device_count() if device == "cuda" else ranks
        if found < ranks or not dist.is_available():
            raise Unsupported(f"this PyTorch finds {found} GPUs, and {ranks} ranks need one each")
        self.device, self.ranks, self.processes, self.parts = device, ranks, {}, 0

    def describe(self):
        name = torch.cuda.get_device_name(0) if self.device == "cuda" else "cpu"
        return {"version": torch.__version__, "device": name, "threads": self.ranks}

    def number(self):
        self.parts += 1
        return self.parts

    def ask(self, ranks, *message):
        if ranks not in self.processes:
            self.processes[ranks] = Processes(self.device, ranks)
        try:
            return self.processes[ranks].ask(*message)
        except Exception as error:
            if ranks > 1 or isinstance(error, Gone):
                self.processes.pop(ranks).end()
            raise

    def open(self, request):
        return Part(self, request)

    def closed(self):
        """Each process has let go of the part."""


if __name__ == "__main__":
    if sys.argv[1:2] not in (["cuda"], ["cpu"]):
        sys.exit(__doc__)
    serve(Ranks)
