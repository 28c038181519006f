"""Hugging Face's implementation of a published architecture, with Overdrive's weights. The states
of such a graph have the names and the orientation of the checkpoints. So loading them is a check
and no mapping."""

import torch
from overdrive_peer import Unsupported


class Outputs(torch.nn.Module):
    """The model as a function of token ids and, for an encoder or a classifier, the mask: logits,
    or the last hidden state."""

    def __init__(self, model, is_encoder):
        super().__init__()
        self.model, self.is_encoder = model, is_encoder

    def forward(self, ids, mask=None):
        if self.is_encoder:
            made = self.model(input_ids=ids, attention_mask=mask)
            return made.logits if "logits" in made else made.last_hidden_state
        return self.model(input_ids=ids, use_cache=False).logits


def published(config, parameters, place):
    """The architecture of a config.json, in a type on a device, ready for inference."""
    try:
        import transformers
    except ImportError as error:
        raise Unsupported(
            f"transformers is not installed: {error}; `pip install transformers`"
        ) from error
    dtype, device = place
    kind = config["model_type"]
    is_encoder = kind in ("bert", "camembert", "distilbert", "roberta", "xlm-roberta")
    named = config.get("architectures") or []
    is_classifier = any(name.endswith("ForSequenceClassification") for name in named)
    config = transformers.AutoConfig.for_model(**config)
    with device:
        if is_classifier:
            model = transformers.AutoModelForSequenceClassification.from_config(config, dtype=dtype)
        elif is_encoder:
            whole = {} if kind == "distilbert" else {"add_pooling_layer": False}
            model = transformers.AutoModel.from_config(config, dtype=dtype, **whole)
        else:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    lacking, unknown = model.load_state_dict(parameters, strict=False)
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    if unknown or set(lacking) - tied:
        raise RuntimeError(
            f"its weights have other names: {sorted(set(lacking) - tied)} are missing, "
            f"{unknown} are unknown"
        )
    model.tie_weights()
    return Outputs(model.eval(), is_encoder)
