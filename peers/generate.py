#!/usr/bin/env python3
"""Decoding by `transformers`, beside `overdrive generate` on the same folder. Needs torch and
transformers; downloads nothing.

    python3 peers/generate.py make FOLDER             a random GPT-2 (124 M) and a tokenizer
    python3 peers/generate.py time FOLDER --prompt TEXT --max-tokens N --threads N --repeats N

`time` prints a line of JSON for each repeat: time to the first token, and tokens per second after
it. Decoding is greedy in f32, with the library's own `generate` and its cache. End tokens are
ignored, so that every repeat makes as many tokens.
"""

import argparse
import json
import pathlib
import time

import torch
import transformers


def make(folder):
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    torch.manual_seed(0)
    config = transformers.GPT2Config(eos_token_id=None, bos_token_id=None)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(
        models.BPE(vocab={byte: index for index, byte in enumerate(alphabet)}, merges=[])
    )
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.save(str(folder / "tokenizer.json"))


class Clock(transformers.generation.streamers.BaseStreamer):
    """Notes when each token comes; the first call is the prompt."""

    def __init__(self):
        self.times = []

    def put(self, value):
        self.times.append(time.perf_counter())

    def end(self):
        pass


def measure(folder, prompt, tokens, repeats):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    ids = torch.tensor([tokenizer.encode(prompt)])
    for _ in range(repeats):
        clock = Clock()
        start = time.perf_counter()
        with torch.no_grad():
            made = model.generate(
                ids,
                max_new_tokens=tokens,
                min_new_tokens=tokens,
                do_sample=False,
                use_cache=True,
                streamer=clock,
                attention_mask=torch.ones_like(ids),
                pad_token_id=0,
            )
        first, rest = clock.times[1], clock.times[1:]
        print(
            json.dumps(
                {
                    "prompt_tokens": ids.shape[1],
                    "tokens": made[0, ids.shape[1] :].tolist(),
                    "first_token_s": first - start,
                    "tokens_per_second": (len(rest) - 1) / (rest[-1] - rest[0]),
                    "threads": torch.get_num_threads(),
                }
            ),
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["make", "time"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument(
        "--prompt", default="The sea is calm to-night. The tide is full, the moon lies fair."
    )
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.what == "make":
        make(arguments.folder)
    else:
        measure(arguments.folder, arguments.prompt, arguments.max_tokens, arguments.repeats)


main()
