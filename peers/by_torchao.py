"""torchao's quantized layers in Hugging Face's implementation of a published architecture, for
`overdrive quantize --peers torchao`.

Weights, layers and inputs are those that Overdrive quantized. A variant is a mode of torchao;
`float` is the model as it was. Activations are bf16 on a GPU and f32 on a processor. All run in
`compile`.
"""

import torch
from overdrive_peer import Unsupported, serve
from quantized_peer import Quantized, QuantizedTorch


def config(variant, device):
    """The configuration that `quantize_` is given."""
    import torchao.quantization as ao

    if variant == "int4-weights":
        if device.type != "cuda":
            raise Unsupported("torchao has int4 kernels for GPUs only")
        # PyTorch itself has kernels for this packing; other packings need one more package.
        return ao.Int4WeightOnlyConfig(group_size=128, int4_packing_format="tile_packed_to_4d")
    return {
        "int8-weights": ao.Int8WeightOnlyConfig,
        "int8-dynamic": ao.Int8DynamicActivationInt8WeightConfig,
        "fp8-weights": ao.Float8WeightOnlyConfig,
        "fp8-dynamic": ao.Float8DynamicActivationFloat8WeightConfig,
    }[variant]()


class ByTorchao(Quantized):
    def quantize(self, model, layers):
        from torchao.quantization import quantize_

        try:
            quantize_(
                model,
                config(self.variant, self.here.device),
                filter_fn=lambda _, name: name in layers,
            )
        except AssertionError as error:  # How torchao says that a device lacks a mode.
            raise Unsupported(str(error)) from error


class Torchao(QuantizedTorch):
    made = ByTorchao
    variants = ["int8-weights", "int8-dynamic", "int4-weights", "fp8-weights", "fp8-dynamic"]
    modes = ["compile"]

    def library(self):
        import torchao

        return f"torchao {torchao.__version__}"


serve(Torchao)
