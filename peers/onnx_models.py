#!/usr/bin/env python3
"""Writes models as PyTorch exports them, and Overdrive's own, as folders that `cargo xtask
onnx-tests DIR` runs.

    pip install torch torchvision transformers onnx==1.23.* onnxruntime onnxscript numpy ml_dtypes
    python3 peers/onnx_models.py DIR [OVERDRIVE]

Kinds:

- `model, torch.export`: the exporter that torch.onnx.export uses by default;
- `model, TorchScript`: the older exporter;
- `model, overdrive export`, if the path of the binary is given.

Weights and inputs are random with fixed seeds. Expected outputs are PyTorch's; for our own models
they are ONNX Runtime's.
"""

import json
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).parent))
from onnx_cases import runtime_says, write  # noqa: E402
from onnx_exported import read  # noqa: E402

# torchvision imports a module `pytorch`, and a file of this folder has that name.
sys.path[:] = [path for path in sys.path if Path(path).resolve() != Path(__file__).resolve().parent]

BUILT_IN = [
    "mlp",
    "conv",
    "transformer",
    "quick-inference",
    "quick-memory",
    "digits-mlp",
    "digits-conv",
    "text-transformer",
]
QUANTIZED = [
    "int8-weights",
    "int8-dynamic",
    "int8-static",
    "int8-smooth",
    "fp8",
    "mxfp8",
    "mxint8",
    "mxfp6",
    "mxfp4",
    "nvfp4",
    "int4-rtn",
    "int4-gptq",
    "int4-hqq",
]


class Residual(nn.Module):
    """Convolutions with a shortcut, padding of two kinds, pooling."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, 16, 7, 2, 3, bias=False),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.MaxPool2d(3, 2, 1),
        )
        self.a = nn.Sequential(nn.Conv2d(16, 16, 3, 1, 1), nn.BatchNorm2d(16), nn.Hardswish())
        self.b = nn.Sequential(
            nn.Conv2d(16, 16, 3, padding=1, groups=16), nn.GroupNorm(4, 16), nn.SiLU()
        )
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        x = self.stem(x)
        x = x + self.b(self.a(x))
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1))


class UNet(nn.Module):
    """A path down, and paths up by transposed convolution and by interpolation, concatenated."""

    def __init__(self):
        super().__init__()
        self.down, self.deep = nn.Conv2d(1, 8, 3, 2, 1), nn.Conv2d(8, 16, 3, 2, 1)
        self.up, self.out = nn.ConvTranspose2d(16, 8, 2, 2), nn.Conv2d(17, 1, 1)

    def forward(self, x):
        a = F.leaky_relu(self.down(x), 0.1)
        b = torch.cat([self.up(F.elu(self.deep(a))), a], 1)
        wide = F.interpolate(b, scale_factor=2.0, mode="bilinear", align_corners=False)
        return torch.sigmoid(
            self.out(torch.cat([wide, F.pad(x, (0, 0, 0, 0), mode="constant")], 1))
        )


class Recurrent(nn.Module):
    """Embedding, LSTM and GRU in both directions."""

    def __init__(self):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(50, 12), nn.LSTM(
            12, 16, 2, batch_first=True, bidirectional=True
        )
        self.gru, self.head = nn.GRU(32, 8, batch_first=True), nn.Linear(8, 5)

    def forward(self, ids):
        x, _ = self.lstm(self.embed(ids))
        x, _ = self.gru(x)
        return F.log_softmax(self.head(x[:, -1]), -1)


class Attentive(nn.Module):
    """Scaled dot-product attention: causal, with a mask, and by hand with einsum."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(32, 96), nn.Linear(32, 32), nn.LayerNorm(32)

    def forward(self, x, mask):
        q, k, v = (
            self.qkv(self.norm(x)).view(x.shape[0], x.shape[1], 3, 4, 8).permute(2, 0, 3, 1, 4)
        )
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        b = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None, :])
        c = torch.einsum(
            "bhqk,bhkd->bhqd", torch.softmax(torch.einsum("bhqd,bhkd->bhqk", q, k) / 8**0.5, -1), v
        )
        return (
            self.out((a + b + c).transpose(1, 2).reshape(x.shape))
            + F.gelu(x)
            + F.gelu(x, approximate="tanh")
        )


class Shapes(nn.Module):
    """Indexing, masks, sorting, reductions, as exporters write them."""

    def forward(self, x, ids):
        y = torch.where(x > 0, x, x.exp() - 1).cumsum(-1)
        top, at = y.topk(3, -1)
        picked = y.gather(-1, ids).clamp(-2.0, 2.0)
        spread = torch.zeros_like(y).scatter(-1, ids, picked)
        parts = torch.stack(x.chunk(2, 1), -1).amax(1)
        triangle = torch.tril(torch.ones(x.shape[-1], x.shape[-1])) @ x.transpose(-1, -2)
        return (
            top,
            at,
            spread.roll(1, -1),
            parts,
            triangle.flip(-1),
            F.normalize(x, dim=-1),
            x.std(-1) + x.var(0).mean(),
        )


def transformer(kind, **more):
    """A tiny model of the library, without its cache."""
    import transformers

    family, config = {
        "bert": ("BertModel", "BertConfig"),
        "gpt2": ("GPT2LMHeadModel", "GPT2Config"),
        "llama": ("LlamaForCausalLM", "LlamaConfig"),
        "qwen2": ("Qwen2ForCausalLM", "Qwen2Config"),
        "mistral": ("MistralForCausalLM", "MistralConfig"),
        "vit": ("ViTModel", "ViTConfig"),
        "distilbert": ("DistilBertModel", "DistilBertConfig"),
    }[kind]
    model = getattr(transformers, family)(getattr(transformers, config)(**more)).eval()

    class First(nn.Module):
        """Its logits, or last hidden state."""

        def __init__(self):
            super().__init__()
            self.model = model

        def forward(self, x):
            keys = {} if kind in ("vit", "bert", "distilbert") else {"use_cache": False}
            return self.model(x, return_dict=False, **keys)[0]

    return First()


def models():
    """Name, module, inputs, names of dynamic axes of each input."""
    x = lambda *shape: torch.randn(*shape)
    ids = lambda n, *shape: torch.randint(0, n, shape)
    batch = {0: "batch"}
    text = {0: "batch", 1: "tokens"}
    yield "residual", Residual(), [x(2, 3, 32, 32)], [batch]
    yield "unet", UNet(), [x(1, 1, 16, 16)], [None]
    yield "recurrent", Recurrent(), [ids(50, 3, 7)], [None]
    yield "attentive", Attentive(), [
        x(2, 6, 32),
        torch.tensor([[True] * 6, [True] * 4 + [False] * 2]),
    ], [None, None]
    yield "shapes", Shapes(), [x(3, 4, 6), ids(6, 3, 4, 2)], [None, None]
    layer = nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True, norm_first=True)
    yield "encoder", nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), [x(2, 5, 32)], [
        None
    ]
    import torchvision.models as vision

    for name in (
        "resnet18",
        "mobilenet_v3_small",
        "squeezenet1_1",
        "shufflenet_v2_x0_5",
        "efficientnet_b0",
    ):
        yield name, getattr(vision, name)(weights=None), [x(1, 3, 64, 64)], [batch]
    yield "convnext_tiny", vision.convnext_tiny(weights=None), [x(1, 3, 32, 32)], [None]
    yield "vit_b_small", vision.VisionTransformer(32, 8, 2, 4, 64, 128, num_classes=10), [
        x(1, 3, 32, 32)
    ], [None]
    small = {
        "vocab_size": 99,
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "intermediate_size": 64,
    }
    yield "bert", transformer("bert", **small), [ids(99, 2, 7)], [text]
    yield "gpt2", transformer(
        "gpt2", vocab_size=99, n_embd=32, n_layer=2, n_head=4, n_positions=32
    ), [ids(99, 2, 7)], [text]
    for name in ("llama", "qwen2", "mistral"):
        yield name, transformer(name, **small, num_key_value_heads=2), [ids(99, 2, 7)], [text]
    yield "distilbert", transformer(
        "distilbert", vocab_size=99, dim=32, n_layers=2, n_heads=4, hidden_dim=64
    ), [ids(99, 2, 7)], [text]
    del small["vocab_size"]
    yield "vit", transformer("vit", **small, image_size=32, patch_size=8), [x(1, 3, 32, 32)], [None]


def finish(folder, name, kind, sets, tolerance):
    """The files of a case, and its line."""
    model = onnx.load(folder / "model.onnx")
    rtol, atol = tolerance
    entry = {"name": name, "kind": kind, "rtol": rtol, "atol": atol, "sets": 1}
    entry["ops"] = sorted({node.op_type for node in model.graph.node})
    inputs, expected = sets
    entry["runtime"] = runtime_says(model, [sets], rtol, atol)
    ports = [port.name for port in model.graph.input]
    write(folder / "inputs.safetensors", dict(zip(ports, inputs)))
    write(
        folder / "expected.safetensors",
        dict(zip([port.name for port in model.graph.output], expected)),
    )
    return entry


def export(out, name, module, inputs, axes, legacy):
    """One model through one of PyTorch's exporters."""
    kind = "TorchScript" if legacy else "torch.export"
    case = f"{name}_{'torchscript' if legacy else 'torch_export'}"
    folder = out / case
    folder.mkdir(exist_ok=True)
    with torch.no_grad():
        expected = module(*inputs)
    expected = list(expected) if isinstance(expected, tuple) else [expected]
    more = {}
    dynamic = any(axes)
    if legacy:
        names = [f"in{i}" for i in range(len(inputs))]
        more = {"input_names": names, "opset_version": 17}
        if dynamic:
            more["dynamic_axes"] = {n: a for n, a in zip(names, axes) if a}
    elif dynamic:
        more["dynamic_shapes"] = tuple(
            {k: torch.export.Dim.DYNAMIC for k in a} if a else None for a in axes
        )
    torch.onnx.export(
        module, tuple(inputs), str(folder / "model.onnx"), dynamo=not legacy, verbose=False, **more
    )
    sets = ([i.numpy() for i in inputs], [e.numpy() for e in expected])
    return finish(folder, case, f"model, {kind}", sets, (1e-3, 1e-4))


def drawn(model):
    """Random inputs of a model of fixed shapes."""
    random = np.random.default_rng(1)
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    return session, [
        (
            random.standard_normal(port.shape).astype(np.float32)
            if port.type == "tensor(float)"
            else random.integers(0, 10, port.shape).astype(
                {"tensor(int64)": np.int64}.get(port.type, np.int32)
            )
        )
        for port in session.get_inputs()
    ]


def quantized(out, binary, name, mode):
    """A quantized model, exported; the expected outputs are those of the folder."""
    folder = out / f"{name}_{mode}"
    folder.mkdir(exist_ok=True)
    run = lambda *words: subprocess.run([binary, *words], check=True, stdout=subprocess.DEVNULL)
    run("quantize", name, "--mode", mode, "-o", folder / "folder", "--trials", "10")
    run("export", folder / "folder", "--onnx", folder / "model.onnx")
    session, inputs = drawn(folder / "model.onnx")
    write(
        folder / "inputs.safetensors",
        {port.name: x for port, x in zip(session.get_inputs(), inputs)},
    )
    run(
        "eval",
        folder / "folder",
        "--inputs",
        folder / "inputs.safetensors",
        "-o",
        folder / "expected.safetensors",
    )
    given = read(folder / "expected.safetensors")
    expected = [given[port.name] for port in session.get_outputs()]
    # If activations are quantized, a last bit decides to which code a tie rounds. A code
    # is a whole step, and all values after it move. Our own modes differ by up to 0.05 (8-bit
    # integers) and 0.13 (fp8) standard deviations of the trained transformer's outputs.
    steps = {
        "int8-dynamic": 0.06,
        "int8-smooth": 0.06,
        "int8-static": 0.06,
        "mxint8": 0.06,
        "fp8": 0.15,
        "mxfp8": 0.15,
    }
    moved = steps.get(mode, 0) * float(expected[0].std()) if name == "text-transformer" else 0
    return finish(
        folder,
        folder.name,
        "model, overdrive quantize",
        (inputs, expected),
        (1e-3, max(1e-3, moved)),
    )


def built_in(out, binary, name):
    """One of our own models, as we export it; the expected outputs are ONNX Runtime's."""
    folder = out / f"{name}_overdrive"
    folder.mkdir(exist_ok=True)
    subprocess.run(
        [binary, "export", name, "--onnx", folder / "model.onnx"],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    session, inputs = drawn(folder / "model.onnx")
    expected = session.run(None, dict(zip([port.name for port in session.get_inputs()], inputs)))
    return finish(
        folder, f"{name}_overdrive", "model, overdrive export", (inputs, expected), (1e-3, 1e-4)
    )


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    entries, refused = [], []
    for name, module, inputs, axes in models():
        module.eval()
        for legacy in (False, True):
            try:
                entries.append(export(out, name, module, inputs, axes, legacy))
            except (
                Exception
            ) as error:  # PyTorch's exporters refuse some models, which we cannot mend
                refused.append(
                    f"{name} ({'TorchScript' if legacy else 'torch.export'}): "
                    f"{str(error).splitlines()[0][:160]}"
                )
    for name in BUILT_IN if len(sys.argv) > 2 else []:
        entries.append(built_in(out, sys.argv[2], name))
    for mode in QUANTIZED if len(sys.argv) > 2 else []:
        for name in ("digits-mlp", "text-transformer"):
            try:
                entries.append(quantized(out, sys.argv[2], name, mode))
            except Exception as error:  # the command gives the reason on stderr
                refused.append(f"{name} in {mode}: {str(error).splitlines()[0][:200]}")
    (out / "cases.json").write_text(json.dumps(entries, indent=1))
    print(
        f"{len(entries)} models, of which ONNX Runtime {onnxruntime.__version__} passes "
        f"{sum(e['runtime'] == 'passes' for e in entries)}"
    )
    for line in refused:
        print(f"not exported: {line}")


if __name__ == "__main__":
    main()
