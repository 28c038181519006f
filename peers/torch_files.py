#!/usr/bin/env python3
"""Files of torch.save with everything that a state dict may hold. They are the fixtures of
crates/overdrive-formats/tests/pytorch/. Needs torch and numpy.

    python3 peers/torch_files.py crates/overdrive-formats/tests/pytorch

archive.bin has the layout since PyTorch 1.6, stream.bin the layout before it. Both hold the same
tensors. expected.npz has their values, bf16 as f32.
"""

import collections
import pathlib
import sys

import numpy as np
import torch


def state_dict():
    generator = torch.Generator().manual_seed(1)
    base = torch.randn(4, 6, generator=generator)
    state = collections.OrderedDict(
        f32=base,
        shared=base,
        transposed=base.t(),
        rows=base[1:3],
        columns=base[:, 1:5:2],
        repeated=base[0, :1].expand(3, 2),
        parameter=torch.nn.Parameter(torch.randn(3, generator=generator)),
        f16=base.half(),
        bf16=base.bfloat16(),
        f64=torch.randn(2, 2, generator=generator, dtype=torch.float64),
        i64=torch.arange(-2, 3),
        u8=torch.arange(5, dtype=torch.uint8),
        bool=torch.tensor([True, False, True]),
        scalar=torch.tensor(2.5),
        empty=torch.zeros(0, 3),
    )
    # Metadata that `Module.state_dict` adds to the items.
    state._metadata = collections.OrderedDict([("", {"version": 1})])
    return state


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    state = state_dict()
    torch.save(state, folder / "archive.bin")
    torch.save(state, folder / "stream.bin", _use_new_zipfile_serialization=False)
    values = {
        name: (x.float() if x.dtype == torch.bfloat16 else x).detach().numpy()
        for name, x in state.items()
    }
    np.savez_compressed(folder / "expected.npz", **values)


main()
