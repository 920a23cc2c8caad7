"""Records what the reference (PyPI tokenizers 0.23.3) makes of the strings of corpus.py.

    python record.py DIR OUT [FUZZ_COUNT SEED]

DIR has a folder with a tokenizer.json for each model, as install.sh makes it. OUT gets
the strings, and for each model the sums of the ids of each string: FNV-1a of 64 bits over
the ids, four bytes each, with the model's special tokens before and behind, then
0xffffffff, then those without.
"""

import hashlib
import json
import pathlib
import sys

from corpus import corpus, fuzz
from tokenizers import Tokenizer


def fnv(ids):
    h = 0xCBF29CE484222325
    for b in b"".join(i.to_bytes(4, "little") for i in ids):
        h = (h ^ b) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return h


def main():
    folder, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    strings = list(fuzz(int(sys.argv[3]), int(sys.argv[4]))) if len(sys.argv) > 3 else corpus()
    models = {}
    for path in sorted(folder.glob("*/tokenizer.json")):
        t = Tokenizer.from_file(str(path))
        t.no_truncation()
        t.no_padding()
        with_special = t.encode_batch(strings, add_special_tokens=True)
        without = t.encode_batch(strings, add_special_tokens=False)
        sums = [fnv(a.ids + [0xFFFFFFFF] + b.ids) for a, b in zip(with_special, without)]
        models[path.parent.name] = {
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
            "sums": "".join("%016x" % s for s in sums),
        }
        print(path.parent.name, len(strings), "strings,", sum(len(a.ids) for a in without), "ids", file=sys.stderr)
    out.write_text(json.dumps({"strings": strings, "models": models}, ensure_ascii=True, indent=0) + "\n")


main()
