"""Makes a tiny Llama with random weights in the folder given: no download.

The weights come from a fixed seed, and are wide enough that the likeliest next
token depends on all of the prompt: a greedy answer is gibberish, but the same
gibberish wherever the same prompt was computed, and another one where the KV
cache was wrong. That is all the tests need.
"""

import json
import pathlib
import string
import sys

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

MAX_LEN = 2048
SPECIAL = ["<pad>", "<bos>", "<eos>", "<turn>", "</turn>"]
# What the tokenizer learns its merges from: some prose, so that prompts in English
# take fewer tokens than bytes.
PROSE = """
A request waits in front of prefill until there is room, and not a moment longer.
Decode writes one token after another; prefill reads the whole prompt at once.
Why is the sky blue? Tell me a short story about a river, a bridge and a lamp.
The weather in Lisbon is fine today, and the ferry leaves at a quarter past nine.
She counted one two three four five six seven eight nine ten, then began again.
{"name": "value", "list": [1, 2, 3], "flag": true, "nothing": null, "text": "words"}
""".strip().splitlines()
# One line for each turn: <turn>role, the text (whole or in parts), </turn>.
TEMPLATE = """
{%- for message in messages -%}
<turn>{{ message.role }}
{% if message.content is string %}{{ message.content }}
{%- else %}{% for part in message.content or [] %}{{ part.text }}{% endfor %}{% endif %}</turn>
{% endfor -%}
{%- if add_generation_prompt %}<turn>assistant
{% endif -%}
"""


def make_tokenizer():
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=768, initial_alphabet=alphabet, special_tokens=SPECIAL, show_progress=False)
    bpe.train_from_iterator(PROSE * 8, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=bpe,
        pad_token="<pad>",
        bos_token="<bos>",
        eos_token="<eos>",
        model_max_length=MAX_LEN,
        chat_template=TEMPLATE,
    )


def make_model(tokenizer):
    torch.manual_seed(20)
    size = -(-len(tokenizer) // 64) * 64  # the engine pads to 64
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size,
            hidden_size=64,
            intermediate_size=160,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=2,
            max_position_embeddings=MAX_LEN,
            tie_word_embeddings=False,
            initializer_range=0.6,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
        )
    )
    # Only tokens of plain printable text are ever the likeliest: no end of text,
    # no halves of characters.
    plain = set(string.ascii_letters + string.digits + string.punctuation + " ")
    with torch.no_grad():
        for token in range(size):
            text = tokenizer.decode([token]) if len(SPECIAL) <= token < len(tokenizer) else ""
            if not text or not set(text) <= plain:
                model.lm_head.weight[token].zero_()
    return model.float().eval()


def main():
    folder = pathlib.Path(sys.argv[1])
    tokenizer = make_tokenizer()
    model = make_model(tokenizer)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    (folder / "generation_config.json").write_text(json.dumps(ids))
    print(f"{folder}: {len(tokenizer)} tokens, {sum(p.numel() for p in model.parameters())} parameters")


main()
