"""Writes what the reference (PyPI tokenizers 0.23.3) makes of ids, for decode_reference_test.go.

    python decode_reference.py small > decode_small.json
    python decode_reference.py real DIRECTORY > decode_real.json

"small": vocabularies of a few tokens that are part of the output. "real": the tokenizers of
DIRECTORY/*/tokenizer.json, of which the output has only digests: with ids drawn by a generator
that the test has too, and with those of the strings of reference.json (test/tokenizers).
"""

import hashlib
import json
import pathlib
import sys

from tokenizers import Tokenizer, decoders


class Draw:
    """64-bit linear congruential generator, the upper bits."""

    def __init__(self, seed):
        self.x = seed

    def below(self, n):
        self.x = (self.x * 6364136223846793005 + 1442695040888963407) % 2**64
        return (self.x >> 33) % n


def decode(tok, ids, skip):
    return tok.decode(ids, skip_special_tokens=skip)


def served(tok, prompt, ids, skip, spaces):
    """The pieces of text that vLLM 0.32 gives with each id."""
    stream = decoders.DecodeStream(ids=prompt, skip_special_tokens=skip)
    added = {} if skip or spaces else tok.get_added_tokens_decoder()
    after_added, pieces = False, []
    for id in ids:
        try:
            piece = stream.step(tok, id)
        except Exception as e:
            assert str(e).startswith("Invalid prefix"), e
            stream = decoders.DecodeStream(skip_special_tokens=skip)
            piece = stream.step(tok, id)
        if id in added and after_added:
            piece = added[id].content
        after_added = id in added
        pieces.append(piece or "")
    return pieces


def prompted(tok, draw, size):
    """A prompt that does not end within a character, and a text after it. No <0x20>, the first id of
    vocabularies with bytes: see Stream."""
    prompt = [1 + draw.below(size - 1) for _ in range(draw.below(4))]
    if any(decode(tok, prompt, skip).endswith("\ufffd") for skip in (False, True)):
        prompt = []
    ids = [1 + draw.below(size - 1) for _ in range(1 + draw.below(9))]
    if draw.below(3) == 0:
        ids = [1 + id % 10 if draw.below(5) else id for id in ids]
    options = [(False, True), (False, False), (True, False)][draw.below(3)]
    return {"prompt": prompt, "ids": ids, "skip": options[0], "spaces": options[1], "pieces": served(tok, prompt, ids, *options)}


BYTES = [f"<0x{b:02X}>" for b in (0x20, 0x41, 0xE2, 0x96, 0x81, 0xF0, 0x9F, 0x98, 0x80, 0xFF, 0xC3)]
PIECES = ["▁a", "▁▁b", "c", " ", "▁", "é", "�", "a▁", "<0xe4>", "<0x+1>", "<0x1>", "<0xGG>", "😀", "aa"]
LEVEL = ["a", "Ġa", "ĠĠ", "Ã", "©", "â", "ĸ", "ģ", "âĸ", "ð", "Ł", "ĺ", "Ģ", "ðŁĺ", "ÿ", "í", "ł", "À", "ô", "Ĩ", "日", "Ċ", "ÃĠ", "à", "Ģ©"]
ADDED = [("<s>", True), ("</s>", True), ("<tool>", False), ("▁t", False), ("é!", False), (" ", False)]

SPACE = {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}
STRIP = {"type": "Strip", "content": " ", "start": 1, "stop": 0}
META = {"type": "Metaspace", "replacement": "▁", "prepend_scheme": "always", "split": True}
LEVELS = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}


def seq(*d):
    return {"type": "Sequence", "decoders": list(d)}


FALLBACK, FUSE = {"type": "ByteFallback"}, {"type": "Fuse"}
DECODERS = {
    "none": None,
    "bytes": LEVELS,
    "bytes in a sequence": seq(LEVELS, FUSE, STRIP),
    "bytes of stripped tokens": seq(dict(STRIP, content="a"), LEVELS),
    "llama": seq(SPACE, FALLBACK, FUSE, STRIP),
    "gemma": seq(SPACE, FALLBACK, FUSE),
    "fallback first": seq(FALLBACK, SPACE, FUSE, dict(STRIP, start=2), dict(STRIP, content="a")),
    "metaspace": META,
    "metaspace, first": dict(META, prepend_scheme="first"),
    "metaspace, never": dict(META, prepend_scheme="never"),
    "metaspace, then bytes": seq(META, FALLBACK),
    "bytes, then metaspace": seq(FALLBACK, META),
    "fallback alone": FALLBACK,
    "fuse alone": FUSE,
    "strip each": seq(STRIP, SPACE, dict(STRIP, start=2)),
    "strip all": seq(seq(seq(SPACE), FUSE), dict(STRIP, start=3)),
    "empty": seq(),
}

SERVED = ["none", "bytes", "bytes in a sequence", "bytes of stripped tokens", "llama", "gemma", "metaspace", "metaspace, then bytes", "bytes, then metaspace", "fallback alone", "empty"]


def file(decoder, vocab):
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": len(vocab) + i, "content": c, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": s}
            for i, (c, s) in enumerate((c, s) for c, s in ADDED if c not in vocab)
        ],
        "normalizer": None, "pre_tokenizer": None, "post_processor": None, "decoder": decoder,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None,
            "fuse_unk": False, "byte_fallback": False, "ignore_merges": False,
            "vocab": {t: i for i, t in enumerate(vocab)}, "merges": [],
        },
    }


def small():
    out = []
    for name, decoder in DECODERS.items():
        f = file(decoder, LEVEL if name.startswith("bytes") and "metaspace" not in name else BYTES + PIECES)
        tok = Tokenizer.from_str(json.dumps(f))
        draw, cases = Draw(len(out)), []
        for i in range(120):
            ids = [draw.below(tok.get_vocab_size() + 1) for _ in range(1 + draw.below(9))]
            if i % 3 == 0:  # mostly bytes
                ids = [id % 11 if draw.below(5) else id for id in ids]
            cases.append({"ids": ids, "skipped": decode(tok, ids, True), "text": decode(tok, ids, False)})
        out.append({"name": name, "tokenizer": f, "cases": cases, "served": [prompted(tok, draw, tok.get_vocab_size() + 1) for _ in range(120 if name in SERVED else 0)]})
    json.dump(out, sys.stdout, ensure_ascii=True, separators=(",", ":"))
    print()


CUTS = 100  # of a string of the corpus


def real(directory):
    strings = json.loads((pathlib.Path(__file__).parent / "reference.json").read_text())["strings"]
    out = {}
    for path in sorted(pathlib.Path(directory).glob("*/tokenizer.json")):
        tok = Tokenizer.from_file(str(path))
        size, draw, digests = tok.get_vocab_size(), Draw(1), []
        for block in range(40):
            digest = hashlib.sha256()
            for _ in range(50):
                # The first ids of all vocabularies are mostly bytes and special tokens, the last ones added.
                kind, ids = draw.below(4), []
                for _ in range(1 + draw.below(12)):
                    n = draw.below(size + 20)
                    if kind == 1 or kind == 2 and draw.below(2):
                        n %= 600
                    elif kind == 3 and draw.below(3) == 0:
                        n = size - n % 300
                    ids.append(n)
                for n in range(1, len(ids) + 1):
                    for skip in (False, True):
                        digest.update(decode(tok, ids[:n], skip).encode() + b"\0")
            digests.append(digest.hexdigest()[:12])
        corpus = []
        for at in range(0, len(strings), 100):
            digest = hashlib.sha256()
            for text in strings[at : at + 100]:
                ids = tok.encode(text, add_special_tokens=True).ids[:CUTS]
                for n in range(1, len(ids) + 1):
                    for skip in (False, True):
                        digest.update(decode(tok, ids[:n], skip).encode() + b"\0")
            corpus.append(digest.hexdigest()[:12])
        out[path.parent.name] = {"vocabulary": size, "digests": digests, "corpus": corpus}
    json.dump(out, sys.stdout, indent=1)
    print()


if __name__ != "__main__":
    pass
elif sys.argv[1] == "small":
    small()
else:
    real(sys.argv[2])
