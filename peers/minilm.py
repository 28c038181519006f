"""A folder with the architecture of all-MiniLM-L6-v2 and random weights, for timings: how long a call takes does not depend
on their values. `python peers/minilm.py FOLDER`; needs torch and transformers."""

import sys

import torch
from transformers import BertConfig, BertModel

# Those of https://huggingface.co/sentence-transformers/all-MiniLM-L6-v2/blob/main/config.json.
CONFIG = BertConfig(
    vocab_size=30522,
    hidden_size=384,
    num_hidden_layers=6,
    num_attention_heads=12,
    intermediate_size=1536,
    max_position_embeddings=512,
    type_vocab_size=2,
    hidden_act="gelu",
)

torch.manual_seed(1)
BertModel(CONFIG, add_pooling_layer=False).eval().save_pretrained(sys.argv[1])
