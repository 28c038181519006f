"""One rank of PyTorch: the parts that `distributed.py` times, each on NCCL (on a CPU, gloo).

- `all_reduce`, `all_gather`, `ring send and receive`: a message of whole numbers in f32;
- `ddp`, `fsdp2`: a training step of a GPT, bf16, `torch.compile`, fused AdamW, clipping;
- `step`: that on one device; `eager step`: not compiled, f16 with a scaled loss; `step, float8
  tensorwise` and `step, float8 rowwise`: linear layers by torchao's recipes;
- `context parallel`: causal attention with T split over the ranks, load balanced;
- `tensor parallel`, `async tensor parallel`: a block with split layers.

Parts on one rank are the same without the collectives. Each checks its first result against what
one rank alone gives.
"""

import contextlib
import ctypes
import os
import time
import traceback

import torch
import torch.distributed as dist
from gpt import SIZES, Block, model


class Here:
    """This rank and its device."""

    def __init__(self, rank, device):
        self.rank = rank
        self.is_cuda = device == "cuda"
        self.device = torch.device(device, rank) if self.is_cuda else torch.device("cpu")

    def synchronize(self):
        if self.is_cuda:
            torch.cuda.synchronize()

    def watch_memory(self):
        """The bytes in use, beyond which the peak counts from now on; none are known on a CPU."""
        if not self.is_cuda:
            return None
        torch.cuda.reset_peak_memory_stats()
        return torch.cuda.memory_allocated()

    def mesh(self, ranks, name):
        from torch.distributed.device_mesh import init_device_mesh

        return init_device_mesh(self.device.type, (ranks,), mesh_dim_names=(name,))


def relative(found, expected):
    """The root mean square of the difference, over that of the expected values."""
    found, expected = found.float(), expected.float()
    return ((found - expected).norm() / expected.norm()).item()


class Message:
    """A message of each rank, and a collective of all of them."""

    def __init__(self, here, ranks, sizes):
        count = sizes["bytes"] // 4
        numbers = torch.arange(count, device=here.device)
        self.of = lambda rank: ((numbers * (rank + 3) + rank) % 7).float()
        self.here, self.ranks, self.x = here, ranks, self.of(here.rank)

    def checked(self, found, expected):
        wrong, self.of = (found != expected).sum().item(), None
        return {"found": [float(wrong)], "expected": [0.0], "rtol": 0.0}


class AllReduce(Message):
    def check(self):
        expected = sum(self.of(rank) for rank in range(self.ranks))
        found = self.x.clone()
        dist.all_reduce(found)
        return self.checked(found, expected)

    def __call__(self):
        # In place: sums would grow beyond all numbers, averages stay. Gloo has none.
        kind = dist.ReduceOp.AVG if self.here.is_cuda else dist.ReduceOp.SUM
        dist.all_reduce(self.x, kind)


class AllGather(Message):
    def __init__(self, here, ranks, sizes):
        super().__init__(here, ranks, {"bytes": sizes["bytes"] // ranks})
        self.y = torch.empty(ranks * self.x.numel(), device=here.device)

    def check(self):
        self()
        return self.checked(self.y, torch.cat([self.of(rank) for rank in range(self.ranks)]))

    def __call__(self):
        dist.all_gather_into_tensor(self.y, self.x)


class Ring(Message):
    def __init__(self, here, ranks, sizes):
        super().__init__(here, ranks, sizes)
        self.y = torch.empty_like(self.x)
        self.to, self.source = (here.rank + 1) % ranks, (here.rank - 1) % ranks

    def check(self):
        self()
        return self.checked(self.y, self.of(self.source))

    def __call__(self):
        pair = [
            dist.P2POp(dist.isend, self.x, self.to),
            dist.P2POp(dist.irecv, self.y, self.source),
        ]
        for work in dist.batch_isend_irecv(pair):
            work.wait()


class Training:
    """A training step; every rank has the same samples, so that its loss is that of one rank."""

    def __init__(self, here, ranks, sizes):
        self.here, self.dtype = here, NARROW.get(sizes["dtype"])
        *_, vocabulary, context = SIZES[sizes["model"]]
        net = model(sizes["model"]).to(here.device)
        generator = torch.Generator(device=here.device).manual_seed(1)
        shape = (sizes["batch"], context + 1)
        self.ids = torch.randint(
            0, vocabulary, shape, device=here.device, generator=generator
        )
        with torch.no_grad(), self.autocast():
            self.expected = net(*self.batch()).item()
        self.parameters_of = net
        self.net = self.compiled(self.split(net, ranks) if ranks > 1 else net)
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)

    def split(self, net, ranks):
        from torch.nn.parallel import DistributedDataParallel

        devices = [self.here.device] if self.here.is_cuda else None
        return DistributedDataParallel(net, device_ids=devices, gradient_as_bucket_view=True)

    def compiled(self, net):
        return torch.compile(net)

    def batch(self):
        return self.ids[:, :-1], self.ids[:, 1:]

    def autocast(self):
        if self.dtype is None:
            return contextlib.nullcontext()
        return torch.autocast(self.here.device.type, self.dtype)

    def check(self):
        found = self().item()
        return {"found": [found], "expected": [self.expected], "rtol": 0.01}

    def __call__(self):
        with self.autocast():
            loss = self.net(*self.batch())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.parameters_of.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


class Eager(Training):
    """The step op by op, in f16 with a scaled loss."""

    def __init__(self, here, ranks, sizes):
        self.scaler = torch.amp.GradScaler(here.device.type)
        super().__init__(here, ranks, sizes)

    def compiled(self, net):
        return net

    def __call__(self):
        with self.autocast():
            loss = self.net(*self.batch())
        self.scaler.scale(loss).backward()
        self.scaler.unscale_(self.optimizer)
        torch.nn.utils.clip_grad_norm_(self.parameters_of.parameters(), 1.0)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.optimizer.zero_grad(set_to_none=True)
        return loss


class Float8(Training):
    """Linear layers on codes of fp8, all but the head."""

    recipe = "tensorwise"

    def compiled(self, net):
        from torchao.float8 import Float8LinearConfig, convert_to_float8_training

        convert_to_float8_training(
            net,
            config=Float8LinearConfig.from_recipe_name(self.recipe),
            module_filter_fn=lambda _, name: not name.endswith("head"),
        )
        return torch.compile(net)


class Float8Rowwise(Float8):
    recipe = "rowwise"


class Fsdp(Training):
    """FSDP2: parameters, gradients and moments split over the ranks, gathered block by block."""

    def split(self, net, ranks):
        from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

        mesh = self.here.mesh(ranks, "data")
        policy = MixedPrecisionPolicy()
        if self.dtype is not None:
            policy = MixedPrecisionPolicy(self.dtype, torch.float32)
        for block in net.blocks:
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(net, mesh=mesh, mp_policy=policy)
        return net


class ContextParallel:
    """Causal attention of `[B, H, T, D]` in bf16, by the context parallel of PyTorch."""

    SMALL = 512

    def __init__(self, here, ranks, sizes):
        self.here, self.ranks, self.backward = here, ranks, sizes["backward"]
        self.mesh = here.mesh(ranks, "context") if ranks > 1 else None
        self.stack, self.sizes = contextlib.ExitStack(), sizes["sizes"]

    def drawn(self, sizes):
        """Queries, keys, values and the output's gradient, the same on all ranks."""
        generator = torch.Generator(device=self.here.device).manual_seed(1)
        dtype = torch.bfloat16 if self.here.is_cuda else torch.float32
        draw = lambda: torch.randn(  # noqa: E731
            sizes, device=self.here.device, dtype=dtype, generator=generator
        )
        return [draw() for _ in range(4)]

    def kernels(self):
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if not self.here.is_cuda:
            return contextlib.nullcontext()
        wanted = [SDPBackend.CUDNN_ATTENTION, SDPBackend.FLASH_ATTENTION]
        return sdpa_kernel(wanted, set_priority=True)

    def split(self, tensors):
        """Inside of it each tensor is this rank's part along T."""
        if self.mesh is None:
            return contextlib.nullcontext()
        from torch.distributed.tensor.experimental import context_parallel

        return context_parallel(
            self.mesh,
            buffers=tensors,
            buffer_seq_dims=[2] * len(tensors),
            no_restore_buffers=set(tensors),
        )

    def check(self):
        batch, _, _, width = self.sizes
        tensors = self.drawn([batch, 2, self.SMALL * self.ranks, width])
        with self.kernels():
            expected = self.attend(*(tensor.clone() for tensor in tensors))
        with self.kernels(), self.split(tensors):
            found = [part.detach() for part in self.attend(*tensors)]
        if self.mesh is not None:
            found = self.joined(found)
        errors = [relative(a, b) for a, b in zip(found, expected)]
        self.parts = self.drawn(self.sizes)
        self.stack.enter_context(self.kernels())
        self.stack.enter_context(self.split(self.parts))
        self()
        return {"found": errors, "expected": [0.0] * len(errors), "rtol": 0.02}

    def joined(self, parts):
        try:
            from torch.distributed.tensor.experimental._context_parallel import (
                context_parallel_unshard,
            )
        except ImportError:
            from torch.distributed.tensor.experimental._attention import context_parallel_unshard
        return context_parallel_unshard(self.mesh, parts, [2] * len(parts))

    def attend(self, q, k, v, gradient):
        """The output, and with backward the gradients of all three."""
        attention = torch.nn.functional.scaled_dot_product_attention
        if not self.backward:
            with torch.no_grad():
                return [attention(q, k, v, is_causal=True)]
        for tensor in (q, k, v):
            tensor.requires_grad_()
            tensor.grad = None
        y = attention(q, k, v, is_causal=True)
        y.backward(gradient)
        return [y, q.grad, k.grad, v.grad]

    def __call__(self):
        self.attend(*self.parts)

    def close(self):
        self.stack.close()


class TensorParallel:
    """A block over `[1, T, width]` in bf16, forward, its layers split by columns and rows."""

    def __init__(self, here, ranks, sizes):
        self.here, self.ranks = here, ranks
        torch.manual_seed(1)
        dtype = torch.bfloat16 if here.is_cuda else torch.float32
        block = Block(sizes["width"], sizes["heads"]).to(here.device, dtype).eval()
        shape = (1, sizes["tokens"], sizes["width"])
        self.x = torch.randn(shape, device=here.device, dtype=dtype)
        with torch.no_grad():
            self.expected = block(self.x)
        self.block = torch.compile(self.split(block) if ranks > 1 else block)

    def split(self, block):
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            RowwiseParallel,
            parallelize_module,
        )

        plan = {
            "qkv": ColwiseParallel(),
            "out": RowwiseParallel(),
            "up": ColwiseParallel(),
            "down": RowwiseParallel(),
        }
        return parallelize_module(block, self.here.mesh(self.ranks, "tensor"), plan)

    def whole(self, y):
        return y.full_tensor() if hasattr(y, "full_tensor") else y

    def check(self):
        found = relative(self.whole(self()), self.expected)
        del self.expected
        return {"found": [found], "expected": [0.0], "rtol": 0.02}

    @torch.no_grad()
    def __call__(self):
        return self.block(self.x)


class AsyncTensorParallel(TensorParallel):
    """The same with sequence parallel norms, whose collectives PyTorch's compiler cuts into pieces
    beside the products."""

    def split(self, block):
        import torch._inductor.config
        from torch.distributed._symmetric_memory import enable_symm_mem_for_group
        from torch.distributed.tensor import Replicate, Shard
        from torch.distributed.tensor.parallel import (
            ColwiseParallel,
            PrepareModuleInput,
            PrepareModuleOutput,
            RowwiseParallel,
            SequenceParallel,
            parallelize_module,
        )

        torch._inductor.config._micro_pipeline_tp = True
        mesh = self.here.mesh(self.ranks, "tensor")
        enable_symm_mem_for_group(mesh.get_group().group_name)
        sharded = dict(output_layouts=Shard(1))
        plan = {
            "norm1": SequenceParallel(),
            "qkv": ColwiseParallel(input_layouts=Shard(1)),
            "out": RowwiseParallel(use_local_output=False, **sharded),
            "norm2": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)),
            "down": RowwiseParallel(use_local_output=False, **sharded),
        }
        block = parallelize_module(block, mesh, plan)
        both = dict(input_layouts=(Replicate(),), desired_input_layouts=(Shard(1),))
        block = parallelize_module(block, mesh, PrepareModuleInput(**both))
        whole = dict(output_layouts=(Shard(1),), desired_output_layouts=(Replicate(),))
        return parallelize_module(block, mesh, PrepareModuleOutput(**whole))


NARROW = {"bf16": torch.bfloat16, "f16": torch.float16}
PARTS = {
    "all_reduce": AllReduce,
    "all_gather": AllGather,
    "ring send and receive": Ring,
    "ddp": Training,
    "step": Training,
    "eager step": Eager,
    "step, float8 tensorwise": Float8,
    "step, float8 rowwise": Float8Rowwise,
    "fsdp2": Fsdp,
    "context parallel": ContextParallel,
    "tensor parallel": TensorParallel,
    "async tensor parallel": AsyncTensorParallel,
}


class Rank:
    """Answers the requests to one of some ranks, about parts by their numbers."""

    def __init__(self, here, ranks):
        self.here, self.ranks, self.parts = here, ranks, {}

    def open(self, number, name, sizes):
        before = self.here.watch_memory()
        try:
            part = self.parts[number] = PARTS[name](self.here, self.ranks, sizes)
            checked = part.check()
            self.here.synchronize()
        except Exception:
            self.close(number)
            raise
        if before is not None:
            checked["peak_bytes"] = torch.cuda.max_memory_allocated() - before
        return checked

    def sample(self, number, calls):
        """Calls back to back, begun by all ranks together; their time to the end of the last."""
        part = self.parts[number]
        if self.ranks > 1:
            dist.barrier()
        self.here.synchronize()
        start = time.perf_counter_ns()
        for _ in range(calls):
            part()
        self.here.synchronize()
        return time.perf_counter_ns() - start

    def close(self, number):
        part = self.parts.pop(number, None)
        if hasattr(part, "close"):
            part.close()
        del part
        if not self.parts:
            torch.compiler.reset()
        if self.here.is_cuda:
            torch.cuda.empty_cache()


def work(rank, ranks, device, port, pipe):
    """The process of a rank: it answers until its pipe is closed, and ends with its parent."""
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).prctl(1, 9)
    # The standard output is the parent's, for its answers alone.
    os.dup2(2, 1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(ranks))
    os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
    here = Here(rank, device)
    if here.is_cuda:
        torch.cuda.set_device(here.device)
    else:
        torch.set_num_threads(max(1, (os.cpu_count() or 1) // ranks))
    of_device = {"device_id": here.device} if here.is_cuda else {}
    backend = "nccl" if here.is_cuda else "gloo"
    dist.init_process_group(backend, rank=rank, world_size=ranks, **of_device)
    answering = Rank(here, ranks)
    while True:
        try:
            verb, *rest = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(("ok", getattr(answering, verb)(*rest)))
        except torch.OutOfMemoryError as error:
            pipe.send(("out_of_memory", str(error)[:1500]))
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            place = f"{os.path.basename(last.filename)}:{last.lineno}"
            pipe.send(("failed", f"{type(error).__name__}: {error} ({place})"[:1500]))
