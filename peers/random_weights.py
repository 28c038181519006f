"""Writes a folder with the architecture of a well-known model and random weights, for timings. The
time of a call does not depend on the values of the weights.

python peers/random_weights.py minilm|gpt2 FOLDER

Needs torch and transformers.
"""

import sys

import torch
import transformers

MODELS = {
    # Those of https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/blob/main/config.json.
    "minilm": lambda: transformers.BertModel(
        transformers.BertConfig(
            vocab_size=30522,
            hidden_size=384,
            num_hidden_layers=6,
            num_attention_heads=12,
            intermediate_size=1536,
        ),
        add_pooling_layer=False,
    ),
    # The defaults of the config are the smallest GPT-2, of 124 million parameters.
    "gpt2": lambda: transformers.GPT2LMHeadModel(transformers.GPT2Config()),
}

torch.manual_seed(1)
MODELS[sys.argv[1]]().eval().save_pretrained(sys.argv[2])
