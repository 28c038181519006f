#!/usr/bin/env python3
"""One token of a decoder in PyTorch, beside `overdrive optimize --decode` on the same folder and at
the same place of the cache. Needs torch and transformers; downloads nothing.

    python3 peers/decode_step.py FOLDER --before 512 [--dtype bf16] [--sequences 1] [--samples 50]

A line of JSON for each way: `eager`, `compile` (torch.compile with CUDA graphs), both with a static
cache of `--before` tokens. Each call adds one, up to 256 more. A sample is the time of a call, from
the token's id to its logits. It is taken on the device, or on the host if there is no GPU. The
token before is not waited for.
"""

import argparse
import json
import statistics
import time

import torch
import transformers

# Tokens of the cache behind those before; calls fill it one by one.
ROOM = 256


def timed(call, samples):
    """Milliseconds of a call."""
    for _ in range(5):
        call()
    found = []
    if not torch.cuda.is_available():
        for _ in range(samples):
            start = time.perf_counter()
            call()
            found.append(1e3 * (time.perf_counter() - start))
        return found
    for _ in range(samples):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        found.append(start.elapsed_time(end))
    return found


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder")
    parser.add_argument("--before", type=int, default=512)
    parser.add_argument("--sequences", type=int, default=1)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--dtype", choices=["f32", "bf16"], default="bf16")
    asked = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[asked.dtype]
    model = transformers.AutoModelForCausalLM.from_pretrained(asked.folder, dtype=dtype)
    model = model.eval().to(device)
    cache = transformers.StaticCache(config=model.config, max_cache_len=asked.before + ROOM)
    ids = torch.ones((asked.sequences, asked.before), dtype=torch.long, device=device)
    positions = torch.arange(asked.before, device=device)
    model(ids, past_key_values=cache, cache_position=positions, use_cache=True)
    token, place = ids[:, :1].contiguous(), torch.tensor([asked.before], device=device)

    def step(token, place):
        return model(
            token,
            past_key_values=cache,
            cache_position=place,
            position_ids=place.expand(asked.sequences, 1),
            use_cache=True,
        ).logits

    mode = "reduce-overhead" if device == "cuda" else "default"
    for name, way in [("eager", step), ("compile", torch.compile(step, mode=mode))]:
        try:
            found = sorted(timed(lambda: way(token, place), asked.samples))
        except Exception as error:
            print(json.dumps({"way": name, "error": f"{type(error).__name__}: {error}"[:500]}))
            continue
        figures = {
            "way": name,
            "dtype": asked.dtype,
            "median_ms": statistics.median(found),
            "least_ms": found[0],
            "most_ms": found[-1],
            "samples": len(found),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
        }
        print(json.dumps(figures), flush=True)


main()
