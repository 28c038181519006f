#!/usr/bin/env python3
"""Writes the fixtures of crates/overdrive-formats/tests/int4/: layers of GPTQ and AWQ. Needs numpy
and safetensors.

    python3 peers/int4_files.py crates/overdrive-formats/tests/int4

The codes are random. Each file is decoded again as its format is defined: GPTQ by the shifts of
AutoGPTQ's `qlinear_cuda_old.py`, AWQ by `reverse_awq_order` of AutoAWQ's `packing_utils.py`. The
result must be `(code - zero) * scale`, which expected.npz holds.
"""

import pathlib
import sys

import numpy as np
from safetensors.numpy import save_file

N, K, GROUP = 16, 32, 16
SHIFTS = np.arange(0, 32, 4, dtype=np.uint32)
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def words(codes, axis, order=range(8)):
    """Eight neighbours along an axis in a word, the lowest bits first."""
    codes = np.moveaxis(codes.astype(np.uint32), axis, -1)
    eights = codes.reshape(*codes.shape[:-1], -1, 8)
    packed = np.zeros(eights.shape[:-1], np.uint32)
    for bits, at in enumerate(order):
        packed |= eights[..., at] << np.uint32(4 * bits)
    return np.ascontiguousarray(np.moveaxis(packed, -1, axis)).view(np.int32)


def decoded_gptq(file, name, zeros_less_one):
    qweight, qzeros, scales, g_idx = (
        file[f"{name}.{part}"] for part in ("qweight", "qzeros", "scales", "g_idx"))
    zeros = (qzeros.view(np.uint32)[:, :, None] >> SHIFTS[None, None, :]) & 15
    zeros = zeros.reshape(scales.shape) + (1 if zeros_less_one else 0)
    codes = (qweight.view(np.uint32)[:, None, :] >> SHIFTS[None, :, None]) & 15
    codes = codes.reshape(-1, qweight.shape[1])
    weights = (codes.astype(np.float32) - zeros[g_idx]) * scales.astype(np.float32)[g_idx]
    return weights.T


def decoded_awq(file, name):
    qweight, qzeros, scales = (
        file[f"{name}.{part}"] for part in ("qweight", "qzeros", "scales"))
    reverse = np.arange(scales.shape[1]).reshape(-1, 8)[:, [0, 4, 1, 5, 2, 6, 3, 7]].reshape(-1)
    [codes, zeros] = (
        ((x.view(np.uint32)[:, :, None] >> SHIFTS) & 15).reshape(x.shape[0], -1)[:, reverse]
        for x in (qweight, qzeros))
    group = np.arange(codes.shape[0]) // (codes.shape[0] // scales.shape[0])
    weights = (codes.astype(np.float32) - zeros[group]) * scales.astype(np.float32)[group]
    return weights.T


def main():
    folder = pathlib.Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(7)
    files = {"gptq": {}, "gptq_v2": {}, "awq": {}}
    expected = {}
    for name in ("symmetric", "asymmetric"):
        codes = rng.integers(0, 16, (K, N))
        zeros = np.full((K // GROUP, N), 8)
        if name == "asymmetric":
            zeros = rng.integers(1, 16, (K // GROUP, N))
        scales = (rng.random((K // GROUP, N)) * 0.1 + 0.01).astype(np.float16)
        groups = np.arange(K) // GROUP
        expected[name] = (
            (codes.astype(np.float32) - zeros[groups]) * scales.astype(np.float32)[groups]).T
        for file, less in (("gptq", 1), ("gptq_v2", 0)):
            files[file][f"{name}.qweight"] = words(codes, 0)
            files[file][f"{name}.qzeros"] = words(zeros - less, 1)
            files[file][f"{name}.scales"] = scales
            files[file][f"{name}.g_idx"] = groups.astype(np.int32)
            assert (decoded_gptq(files[file], name, less == 1) == expected[name]).all()
        files["awq"][f"{name}.qweight"] = words(codes, 1, AWQ_ORDER)
        files["awq"][f"{name}.qzeros"] = words(zeros, 1, AWQ_ORDER)
        files["awq"][f"{name}.scales"] = scales
        assert (decoded_awq(files["awq"], name) == expected[name]).all()
    for name, tensors in files.items():
        save_file(tensors, folder / f"{name}.safetensors")
    np.savez_compressed(
        folder / "expected.npz", **{name: np.ascontiguousarray(x) for name, x in expected.items()})


main()
