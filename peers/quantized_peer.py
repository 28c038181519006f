"""The common part of the programs of quantizing libraries for PyTorch. A library replaces the named
linear layers of a published architecture, on the work that `overdrive_peer` describes."""

import torch
from overdrive_peer import Unsupported
from pytorch import Made, Torch


def linear_layers(model, names):
    """Makes the named layers `torch.nn.Linear`, because libraries take only those. GPT-2 has
    Conv1D, the same product with its weights transposed."""
    for name in names:
        module = model.get_submodule(name)
        if type(module).__name__ != "Conv1D":
            continue
        inputs, outputs = module.weight.shape
        with module.weight.device:
            made = torch.nn.Linear(
                inputs, outputs, bias=module.bias is not None, dtype=module.weight.dtype
            )
        made.weight = torch.nn.Parameter(module.weight.data.t().contiguous(), requires_grad=False)
        if module.bias is not None:
            made.bias = module.bias
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, made)


def nbytes(tensor):
    """Bytes of all tensors that a tensor is made of."""
    if hasattr(tensor, "__tensor_flatten__"):
        names, _ = tensor.__tensor_flatten__()
        return sum(nbytes(getattr(tensor, name)) for name in names)
    state = getattr(tensor, "quant_state", None)  # The scales of 4 bits in bitsandbytes.
    scales = 0 if state is None else state.absmax.nbytes
    rows = getattr(tensor, "SCB", None)  # The scales of 8 bits in bitsandbytes.
    return tensor.nbytes + scales + (0 if rows is None else rows.nbytes)


class Quantized(Made):
    """A model with the layers of a library."""

    def prepared(self, outputs, request):
        names = request.get("layers") or []
        known = dict(outputs.model.named_modules())
        unknown = [name for name in names if name not in known]
        if unknown:
            raise Unsupported(f"Hugging Face's implementation has no layer {unknown[0]}")
        linear_layers(outputs.model, names)
        if self.variant != "float":
            with torch.no_grad():
                self.quantize(outputs.model, set(names))
        parameters = {id(p): p for p in outputs.model.parameters()}
        self.weight_bytes = sum(nbytes(parameter) for parameter in parameters.values())
        return outputs

    def quantize(self, model, layers):
        raise NotImplementedError


class QuantizedTorch(Torch):
    """PyTorch with a library: derive it with `made`, `variants`, `modes` and `library`."""

    def __init__(self, device, threads):
        try:
            self.version = self.library()
        except ImportError as error:
            raise Unsupported(str(error)) from error
        super().__init__(device, threads)

    def describe(self):
        said = super().describe()
        return {
            **said,
            "version": f"{self.version}, PyTorch {said['version']}",
            "modes": self.modes,
        }

    def knows(self, request):
        known = request.get("config") is not None
        return {"known": known, "by": "transformers", "variants": ["float", *self.variants]}

    def open(self, request):
        ready = self.made(request, self)
        ready.paid["weight_bytes"] = ready.weight_bytes
        return ready
