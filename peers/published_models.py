"""Hugging Face's implementation of a published architecture, with Overdrive's weights. The states
of such a graph have the names and the orientation of the checkpoints. So loading them is a check
and no mapping.

A decoder also gives its first token behind a text, or its next one with a static cache."""

import inspect

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


class Cached(torch.nn.Module):
    """The logits after the last of the token ids. A next token finds keys and values of those
    before in a static cache; a first token makes them."""

    def __init__(self, model, is_next):
        super().__init__()
        self.model, self.is_next = model, is_next
        self.cache = self.ids = None
        self.takes = inspect.signature(model.forward).parameters

    def start(self, ids):
        """Reads all but the last of the ids for a next token, nothing for a first one. The inputs
        of a call."""
        from transformers import StaticCache

        if self.ids is None or not torch.equal(self.ids, ids):
            self.ids = ids
            # A second call may follow before the cache is rewound.
            self.cache = StaticCache(config=self.model.config, max_cache_len=ids.shape[1] + 1)
            self.before = ids.shape[1] - 1 if self.is_next else 0
            places = torch.arange(ids.shape[1], device=ids.device)
            if self.is_next:
                with torch.no_grad():
                    self(ids[:, : self.before].contiguous(), places[: self.before])
            self.given = ids[:, self.before :].contiguous(), places[self.before :].contiguous()
        self.rewind()
        return self.given

    def rewind(self):
        """Forgets what calls wrote, where a cache counts it by itself."""
        for layer in getattr(self.cache, "layers", []):
            for name, count in list(vars(layer).items()):
                if not name.startswith("cumulative_length"):
                    continue
                if torch.is_tensor(count):
                    count.fill_(self.before)
                else:
                    setattr(layer, name, self.before)

    def forward(self, ids, places):
        more = {"cache_position": places, "logits_to_keep": 1}
        more = {name: value for name, value in more.items() if name in self.takes}
        made = self.model(
            ids,
            past_key_values=self.cache,
            position_ids=places.expand(ids.shape[0], -1),
            use_cache=True,
            **more,
        )
        return made.logits[:, -1]


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
