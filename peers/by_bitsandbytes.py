"""The layers of bitsandbytes in Hugging Face's implementation of a published architecture, for
`overdrive quantize --peers bitsandbytes`.

Weights, layers and inputs are those that Overdrive quantized. `int8` is LLM.int8(), `nf4` and `fp4`
have 4 bits in blocks of 64. They run in `eager`, as transformers runs them.
"""

import torch
from overdrive_peer import serve
from quantized_peer import Quantized, QuantizedTorch


def layer(linear, variant):
    """The layer of bitsandbytes with these weights, which are quantized as they reach the
    device."""
    import bitsandbytes as bnb

    sizes, bias = (linear.in_features, linear.out_features), linear.bias is not None
    weight = linear.weight.data.cpu().contiguous()
    if variant == "int8":
        made = bnb.nn.Linear8bitLt(*sizes, bias=bias, has_fp16_weights=False, threshold=6.0)
        made.weight = bnb.nn.Int8Params(weight, requires_grad=False, has_fp16_weights=False)
    else:
        made = bnb.nn.Linear4bit(*sizes, bias=bias, compute_dtype=weight.dtype, quant_type=variant)
        made.weight = bnb.nn.Params4bit(weight, requires_grad=False, quant_type=variant)
    if bias:
        made.bias = torch.nn.Parameter(linear.bias.data, requires_grad=False)
    return made.to(linear.weight.device)


class ByBitsandbytes(Quantized):
    def quantize(self, model, layers):
        for name in layers:
            parent, _, last = name.rpartition(".")
            parent = model.get_submodule(parent)
            setattr(parent, last, layer(getattr(parent, last), self.variant))


class Bitsandbytes(QuantizedTorch):
    made = ByBitsandbytes
    variants = ["int8", "nf4", "fp4"]
    modes = ["eager"]

    def library(self):
        import bitsandbytes

        return f"bitsandbytes {bitsandbytes.__version__}"


serve(Bitsandbytes)
