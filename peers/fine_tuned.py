#!/usr/bin/env python3
"""One step of AdamW that PyTorch takes with the tiny models of
crates/overdrive-studies/tests/pretrained/. Writes `fine_tuned.npz` in their folders. Needs torch
and transformers; downloads nothing.

    python3 peers/fine_tuned.py crates/overdrive-studies/tests/pretrained [NAME...]

The step is taken in f64. `x` and `labels` are the batch, and `loss` is its mean cross entropy.
Every parameter after the step is under `after/`. Only matrices decay, as in Overdrive. Epsilon is
larger than usual: for gradients near zero Adam's first step is their sign, which is rounding.
"""

import pathlib
import sys

import numpy as np
import torch
import transformers

NAMES = ("gemma2", "gpt2", "llama", "phi3", "qwen3")
RATE, BETAS, EPSILON, DECAY = 1e-2, (0.9, 0.999), 1e-4, 0.1


def write(folder):
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float64, attn_implementation="eager").eval()
    ids = torch.randint(
        0, model.config.vocab_size, (2, 9), generator=torch.Generator().manual_seed(4)
    )
    x, labels = ids[:, :-1], ids[:, 1:]
    parameters = dict(model.named_parameters())
    groups = [{"params": [p for p in parameters.values() if (p.dim() > 1) == decays],
               "weight_decay": DECAY if decays else 0.0} for decays in (True, False)]
    optimizer = torch.optim.AdamW(groups, lr=RATE, betas=BETAS, eps=EPSILON)
    loss = torch.nn.functional.cross_entropy(model(x).logits.flatten(0, 1), labels.flatten())
    loss.backward()
    optimizer.step()
    after = {
        f"after/{name}": p.detach().to(torch.float32).numpy() for name, p in parameters.items()
    }
    np.savez_compressed(folder / "fine_tuned.npz", x=x.numpy().astype(np.int32),
                        labels=labels.numpy().astype(np.int32),
                        loss=np.float32(loss.item()).reshape(1), **after)


if __name__ == "__main__":
    root = pathlib.Path(sys.argv[1])
    for name in sys.argv[2:] or NAMES:
        write(root / name)
