"""Records what the reference makes of small tokenizers: every option, alone and mixed.

    python small.py OUT [COUNT SEED]

Without a count, the cases that are committed.
"""

import json
import os
import random
import resource
import signal
import sys

from tokenizers import Tokenizer

PATTERNS = [
    # Of models, as their files have them.
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]|\s+(?!\S)|\s",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[一-龥぀-ゟ゠-ヿ]+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"\p{N}{1,3}",
    r"[0-9][0-9][0-9]",
    r"\d{1,3}(?=(?:\d{3})*\b)",
    r"(?=(\d{3})+(?!\d))",
    r"\d(?=(?:\d{3})+(?!\d))",
    # Of the dialect.
    r"a++b|a", r"(?>a+)b|a+", r"(?:ab)+|a", r"(?:ab|a)(?:b|c)?", r"(?:a|b){2,3}", r"(ab){0,2}c", r"a(?!b)", r"a(?=b)", r"(?!a)\w+", r"(?:(?!ab).)+",
    r"[a-c]+", r"[^a-c]+", r"[\w&&[^ab]]+", r"[ab[^\w]]+", r"[a\-b]+", r"[\s\S]", r".+", r"[^\S\n]+", r"\S+", r"\W+", r"\D+", r"\w+", r"\p{^L}+", r"\P{L}+", r"[^\p{^L}]+",
    r"\x{61}+", r"\x61", r"\u0061b?", r"(?i:k|s)+", r"(?i:[a-k])+", r"(?i:Ab)(?-i:c)?", r"\.|\-|\_|\/|\(|,", r"{|}|]", r"a{2}", r"a{2,}", r"a{1,2}+b?", r"\t|\n|\r|\f|\v", r"(?:\r?\n)+", r"\bab|c\b", r"\Ba", r"(?<=a)b+", r"(?<!a)b", r"(?<!\S)a", r"\p{Lu}\p{Ll}*|\p{Nd}", r"[\p{P}\p{S}]", r"\p{Zs}", r"(?:a*b)+",
    r"^a|b$|\n$", r"^", r"$", r"\Aab|c\z", r"\s+\Z", r"a*", r"(?=a)", r"\b", r"(?:a|)b", r"(?<=[ab])(?=\s)", r"(?i:'s|'T)|\w|x", r"\h+", r"[\h]", r"a+?", r"[[:alpha:]]+", r"a{,2}", r"(a)\1", r"[^\n\r]*[\n\r]+", r"\p{Hiragana}|\p{Katakana}|[\p{Latin}--a]", r"\p{Cyrillic}+|\p{Latin}+",
]
REPLACEMENTS = [({"String": " "}, "▁"), ({"String": "a"}, "bb"), ({"String": "ab"}, ""), ({"Regex": r"\s+"}, " "), ({"Regex": r" {2,}"}, "▁"), ({"String": "``"}, '"'), ({"Regex": r"[\n\r]"}, "x")]
LETTERS = list("abcABCs ▁1é.,'\n中ß") + ["\u0301"]
STRINGS = ["", " ", "a", "ab", "abc abc", " a b  c   ", "aabbcc abcabc", "it's s's 'S", "12 123 1234 1234567", "a1b2", "éé e\u0301 E\u0301", "中中 ab中", "a\n\nb\r\n c\t", "<x>", "a<x>b", " <x> ", "<x><y> <x>  b", "ab<z>ab <w>", "bab,a.b;c", "▁a ▁▁b", "ABC aBc Abc", "ßſK \u212a", "x" * 50 + "a" * 50, "ab" * 60, "\x00\ufeff\u200b", "a<0x41>", "ſtß İI", "...,,''", "  \u00a0\u3000 ab  "]


def bpe(rng):
    alphabet = rng.sample(LETTERS, rng.randint(4, len(LETTERS)))
    kind = rng.random()
    vocab, prefix, suffix = {}, None, None

    def add(token):
        vocab.setdefault(token, len(vocab))

    model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": None, "fuse_unk": rng.random() < 0.5, "byte_fallback": False, "ignore_merges": rng.random() < 0.3}
    if rng.random() < 0.5:
        model["unk_token"] = "<unk>"
        add("<unk>")
    if rng.random() < 0.4:
        model["byte_fallback"] = True
        for b in range(256):
            if rng.random() < 0.9:
                add("<0x%02X>" % b)
    if kind < 0.5:  # bytes
        from tokenizers.pre_tokenizers import ByteLevel

        alphabet = sorted(ByteLevel.alphabet())
        if rng.random() < 0.1:
            alphabet = alphabet[: rng.randint(200, 255)]
        often = [c for c in alphabet if c in "abcABCsĠĊ1.'Ã©ä¸Ń"]
    else:
        often = alphabet
        if rng.random() < 0.1:
            prefix = model["continuing_subword_prefix"] = "##"
        if rng.random() < 0.1:
            suffix = model["end_of_word_suffix"] = "</w>"
    for c in alphabet:
        add(c)
        if prefix:
            add(prefix + c)
        if suffix:
            add(c + suffix)
            if prefix:
                add(prefix + c + suffix)
    merges = []
    tokens = [t for t in vocab if not t.startswith("<")]
    for _ in range(rng.randint(0, 60)):
        a, b = rng.choice(tokens), rng.choice(tokens)
        if rng.random() < 0.8:
            a, b = rng.choice(often), rng.choice([t for t in tokens if t[0] in often] or tokens)
        if " " in a + b and rng.random() < 0.5:
            continue
        if prefix and not b.startswith(prefix) or prefix and a == prefix:
            continue
        new = a + (b[len(prefix) :] if prefix else b)
        if len(new) > 12:
            continue
        add(new)
        tokens.append(new)
        merges.append([a, b])
    rng.shuffle(merges)
    if rng.random() < 0.3:
        for _ in range(4):
            add("".join(rng.choice(often) for _ in range(rng.randint(2, 4))))  # tokens that no merge makes
    if merges and not any(" " in a + b for a, b in merges) and rng.random() < 0.5:
        merges = [a + " " + b for a, b in merges]
    return {**model, "vocab": vocab, "merges": merges}, kind < 0.5


def normalizer(rng):
    pattern, content = rng.choice(REPLACEMENTS)
    return rng.choice([
        {"type": "NFC"}, {"type": "NFD"}, {"type": "NFKC"}, {"type": "NFKD"}, {"type": "Lowercase"}, {"type": "StripAccents"},
        {"type": "Strip", "strip_left": rng.random() < 0.5, "strip_right": rng.random() < 0.5},
        {"type": "Prepend", "prepend": rng.choice(["▁", "a", "ab"])},
        {"type": "Replace", "pattern": pattern, "content": content},
        {"type": "Replace", "pattern": pattern, "content": content},
    ])


def pre_tokenizer(rng):
    behavior = rng.choice(["Isolated", "Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous"])
    pattern = {"Regex": rng.choice(PATTERNS)} if rng.random() < 0.8 else {"String": rng.choice([" ", "a", "ab", "\n"])}
    return rng.choice([
        {"type": "Split", "pattern": pattern, "behavior": behavior, "invert": rng.random() < 0.2},
        {"type": "Split", "pattern": pattern, "behavior": "Isolated", "invert": False},
        {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.5, "trim_offsets": True, "use_regex": rng.random() < 0.5},
        {"type": "Digits", "individual_digits": rng.random() < 0.5},
        {"type": "Punctuation", "behavior": behavior},
        {"type": "Metaspace", "replacement": "▁", "prepend_scheme": rng.choice(["always", "first", "never"]), "split": rng.random() < 0.5},
        {"type": "Whitespace"}, {"type": "WhitespaceSplit"}, {"type": "CharDelimiterSplit", "delimiter": rng.choice("a ,")},
    ])


def sequence(rng, make, key):
    n = rng.choice([0, 1, 1, 2, 3])
    if n == 0:
        return None
    if n == 1:
        return make(rng)
    return {"type": "Sequence", key: [make(rng) for _ in range(n)]}


def processor(rng, vocab):
    x = rng.choice(sorted(vocab))
    special = {"x": {"id": "x", "ids": [vocab[x]], "tokens": [x]}}
    a, s = {"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "x", "type_id": 0}}
    pair = [a, {"Sequence": {"id": "B", "type_id": 1}}]
    byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
    template = {"type": "TemplateProcessing", "single": rng.choice([[s, a], [a, s], [s, a, s], [a], [s, s, a]]), "pair": pair, "special_tokens": special}
    bert = {"type": "BertProcessing", "sep": [x, vocab[x]], "cls": [x, vocab[x]]}
    return rng.choice([None, byte_level, template, template, bert, {"type": "Sequence", "processors": [byte_level, template]}])


def tokenizer(rng):
    model, byte_level = bpe(rng)
    pre = sequence(rng, pre_tokenizer, "pretokenizers")
    if byte_level and rng.random() < 0.9:
        last = {"type": "ByteLevel", "add_prefix_space": rng.random() < 0.3, "trim_offsets": True, "use_regex": rng.random() < 0.4}
        before = [] if pre is None else pre.get("pretokenizers", [pre])
        pre = {"type": "Sequence", "pretokenizers": before + [last]}
    added = []
    for content in rng.sample(["<x>", "<y>", "<x><y>", "ab", "b", " ", "<z>", "<w>", "AB", "é", "<unk>", "<0x41>", "c ", "\n"], rng.randint(0, 5)):
        flag = lambda p: rng.random() < p
        added.append({"id": 0, "content": content, "single_word": flag(0.2), "lstrip": flag(0.2), "rstrip": flag(0.2), "normalized": flag(0.3), "special": flag(0.6)})
    return {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": sequence(rng, normalizer, "normalizers"), "pre_tokenizer": pre, "post_processor": processor(rng, model["vocab"]), "decoder": None, "model": model}


def guarded(t, strings):
    """case in a process of its own: the reference loops or dies on some mixes."""
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
        signal.alarm(10)
        os.close(r)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with os.fdopen(w, "w") as out:
            json.dump(case(t, strings), out)
        os._exit(0)
    os.close(w)
    with os.fdopen(r) as result:
        text = result.read()
    died = os.waitpid(pid, 0)[1] != 0
    return {"tokenizer": t, "refused": "died", "strings": [], "ids": []} if died else json.loads(text)


def case(t, strings):
    try:
        reference = Tokenizer.from_str(json.dumps(t))
    except BaseException as e:
        return {"tokenizer": t, "refused": str(e)[:80], "strings": [], "ids": []}
    ids = []
    for s in strings:
        try:
            ids.append(reference.encode(s).ids)
        except BaseException:
            ids.append(None)
    return {"tokenizer": t, "strings": strings, "ids": ids}


def pattern_cases():
    """Every pattern alone, in a model of single characters that keeps the words apart."""
    rng = random.Random(7)
    chars = sorted(set("".join(STRINGS)))
    for p in PATTERNS:
        strings = STRINGS + ["".join(rng.choice("aabbc' \n1A.中é") for _ in range(rng.randint(3, 25))) for _ in range(12)]
        vocab = {}
        for c in sorted(set("".join(strings))):
            vocab.setdefault(c, len(vocab))
            vocab.setdefault(c + "|", len(vocab))
        model = {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None, "end_of_word_suffix": "|", "fuse_unk": False, "byte_fallback": False, "ignore_merges": False, "vocab": vocab, "merges": []}
        split = {"type": "Split", "pattern": {"Regex": p}, "behavior": "Isolated", "invert": False}
        yield {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None, "pre_tokenizer": split, "post_processor": None, "decoder": None, "model": model}, strings


def main():
    count, seed = (int(sys.argv[2]), int(sys.argv[3])) if len(sys.argv) > 2 else (60, 3)
    rng = random.Random(seed)
    cases = [guarded(t, s) for t, s in pattern_cases()] if len(sys.argv) <= 2 else []
    for _ in range(count):
        t = tokenizer(rng)
        strings = rng.sample(STRINGS, 12) + ["".join(rng.choice(["a", "b", "c", " ", "<x>", "<y>", "ab", "é", "1", ".", "'s", "A", "\n", "中", "▁", "<z>"]) for _ in range(rng.randint(1, 30))) for _ in range(8)]
        cases.append(guarded(t, strings))
    with open(sys.argv[1], "w") as out:
        json.dump({"cases": cases}, out, ensure_ascii=True, separators=(",", ":"))
        out.write("\n")
    print(len(cases), "cases,", sum("refused" in c for c in cases), "refused by the reference", file=sys.stderr)


main()
