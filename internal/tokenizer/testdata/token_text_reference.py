"""Writes how vLLM 0.32 names tokens in log probabilities, for token_text_test.go.

    python token_text_reference.py decode_small.json > token_text.json

The vocabularies are those of decode_small.json. Those with a Metaspace decoder get a
pre-tokenizer of the same kind, as vLLM looks for one.
"""

import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace

from decode_reference import Draw
from tokenizers import Tokenizer
from vllm.tokenizers.detokenizer_utils import convert_ids_list_to_tokens
from vllm.v1.engine.logprobs import LogprobsProcessor


class Wrapped:
    """What vLLM asks of transformers' wrapper."""

    def __init__(self, tok):
        self.backend_tokenizer = tok

    def decode(self, ids):
        return self.backend_tokenizer.decode(ids, skip_special_tokens=False)

    def convert_ids_to_tokens(self, ids):
        return [self.backend_tokenizer.id_to_token(id) for id in ids]


def cases(tok, size) -> Iterator[dict]:
    draw, wrapped = Draw(1), Wrapped(tok)
    processor = SimpleNamespace(tokenizer=wrapped)
    processor._correct_decoded_token = lambda *a: LogprobsProcessor._correct_decoded_token(processor, *a)
    for i in range(150):
        before, id = [draw.below(size) for _ in range(draw.below(6))], draw.below(size)
        if i % 2:
            before, id = [b % 11 if draw.below(4) else b for b in before], id % 11
        text = convert_ids_list_to_tokens(wrapped, [id])
        text = LogprobsProcessor._verify_tokens(processor, text, [id], before[-4:])
        yield {"before": before, "id": id, "text": text[0]}


def main():
    out = []
    for f in json.load(open(sys.argv[1])):
        if "metaspace" in f["name"]:
            f["tokenizer"]["pre_tokenizer"] = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
        tok = Tokenizer.from_str(json.dumps(f["tokenizer"]))
        out.append({"name": f["name"], "metaspace": "metaspace" in f["name"], "cases": list(cases(tok, tok.get_vocab_size()))})
    json.dump(out, sys.stdout, ensure_ascii=True, separators=(",", ":"))
    print()


main()
