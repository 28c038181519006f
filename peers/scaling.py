#!/usr/bin/env python3
"""Weak scaling over the GPUs of one host: `overdrive train` beside DistributedDataParallel of
PyTorch on the same model, with the same tokens a rank, in turn.

    python3 peers/scaling.py OVERDRIVE OUT [--model gpt-125m] [--batch 16] [--ranks 1,2,4]
        [--rounds 2] [--steps 60] [-- options of train]

OUT gets scaling.json with every run, and a table goes to the terminal. PyTorch has autocast to
bf16, `torch.compile`, fused AdamW and SDPA; its gradients are f32, as ours are. Needs torch.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path


def rank_of_pytorch(size, batch, steps):
    """One rank of torchrun: prints the tokens/s of all ranks, by the median step of rank 0."""
    import torch
    import torch.distributed as dist
    from gpt import CONTEXT, VOCABULARY, model
    from torch.nn.parallel import DistributedDataParallel

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = int(os.environ["LOCAL_RANK"])
    torch.cuda.set_device(device)
    net = model(size).cuda()
    if ranks > 1:
        dist.init_process_group("nccl", device_id=torch.device("cuda", device))
        net = DistributedDataParallel(net, device_ids=[device], gradient_as_bucket_view=True)
    step_of = torch.compile(net)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(0, VOCABULARY, (batch, CONTEXT + 1), device="cuda")
    events = []
    for _ in range(steps):
        with torch.autocast("cuda", torch.bfloat16):
            loss = step_of(ids[:, :-1], ids[:, 1:])
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        events.append(event)
    torch.cuda.synchronize()
    times = [a.elapsed_time(b) for a, b in zip(events, events[1:])][steps // 2 :]
    median = sorted(times)[len(times) // 2]
    if rank == 0:
        tokens = batch * CONTEXT * ranks / (median * 1e-3)
        print(json.dumps({"tokens_per_s": tokens, "step_ms": median, "loss": loss.item()}))
    if ranks > 1:
        dist.destroy_process_group()


def said(command, **options):
    done = subprocess.run(command, capture_output=True, text=True, timeout=400, **options)
    return done.returncode, done.stdout + done.stderr


def ours(arguments, ranks, folder):
    command = [arguments.overdrive, "train", arguments.model, "--data", "text"]
    command += ["--precision", "bf16", "--batch", str(arguments.batch * ranks)]
    command += ["--steps", str(arguments.steps), "-o", str(folder), "--force", *arguments.rest]
    command += ["--nproc", str(ranks)] if ranks > 1 else []
    code, text = said(command)
    # The last rate that is printed is that of the whole run's steps.
    rates = re.findall(r"([\d,.]+)\s*(k|M|)\s*tokens/s", text)
    if code != 0 or not rates:
        return {"error": text[-2000:]}
    number, unit = rates[-1]
    scale = {"": 1, "k": 1e3, "M": 1e6}[unit]
    return {"tokens_per_s": float(number.replace(",", "")) * scale, "said": text[-600:]}


def theirs(arguments, ranks):
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}"]
    command += [__file__, "--rank", arguments.model, str(arguments.batch), str(arguments.steps)]
    code, text = said(command)
    lines = [line for line in text.splitlines() if line.startswith("{")]
    return json.loads(lines[-1]) if code == 0 and lines else {"error": text[-2000:]}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("overdrive")
    parser.add_argument("out", type=Path)
    parser.add_argument("--model", default="gpt-125m")
    parser.add_argument("--batch", type=int, default=16, help="samples of a rank")
    parser.add_argument("--ranks", default="1,2")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--kinds", default="overdrive,ddp")
    parser.add_argument("rest", nargs="*", help="options of train, after --")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    runs, counts = [], [int(n) for n in arguments.ranks.split(",")]
    for number in range(arguments.rounds):
        for ranks in counts:
            for kind in arguments.kinds.split(","):
                start = time.time()
                if kind == "overdrive":
                    found = ours(arguments, ranks, arguments.out / "model")
                else:
                    found = theirs(arguments, ranks)
                runs.append({"kind": kind, "ranks": ranks, "round": number, **found})
                runs[-1]["wall_s"] = time.time() - start
                rate = found.get("tokens_per_s")
                print(kind, ranks, "ranks:", f"{rate:,.0f} tokens/s" if rate else found, flush=True)
                (arguments.out / "scaling.json").write_text(json.dumps(runs, indent=1))
    print("| | ranks | tokens/s | of as many times one |\n|---|---|---|---|")
    for kind in ["overdrive", "ddp"]:
        of = lambda n: [
            r["tokens_per_s"] for r in runs
            if r["kind"] == kind and r["ranks"] == n and "tokens_per_s" in r
        ]
        one = max(of(1), default=None)
        for n in counts:
            if of(n):
                best = max(of(n))
                share = f"{100 * best / (n * one):.1f} %" if one else ""
                print(f"| {kind} | {n} | {', '.join(f'{x:,.0f}' for x in of(n))} | {share} |")


if sys.argv[1:2] == ["--rank"]:
    rank_of_pytorch(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
else:
    main()
