"""The strings that the tokenizers of this project and of the reference are compared on."""

import random
import unicodedata

WORDS = """
the of and to in is you that it he was for on are as with his they I at be this have from or one had by word but not
what all were we when your can said there use an each which she do how their if will up other about out many then them
tokenizer prefill decode router inference transformer quantization deployment observability hyperparameter Kubernetes
naïve café résumé coöperate Zürich Ångström façade jalapeño smörgåsbord Übermut straße ßſK Łódź Dvořák İstanbul ıssız
antidisestablishmentarianism supercalifragilisticexpialidocious pneumonoultramicroscopicsilicovolcanoconiosis
""".split()
CONTRACTIONS = "I'm you're he's we've they'll I'd don't can't it's o'clock rock'n'roll y'all'd've I'M YOU'RE HE'S WE'VE THEY'LL I'D it’s we’ll 'tis 'twas 's 't 're 've 'm 'll 'd 'S 'LL 'Re ''s 's's a's\u017f '\u017f 'ſt x'ﬅ".split()
SCRIPTS = [
    "Η γρήγορη καφέ αλεπού πηδά πάνω από το τεμπέλικο σκυλί. ᾳ ᾴ ΐ ΰ Ὀδυσσεύς",
    "Съешь же ещё этих мягких французских булок, да выпей чаю. Ґанок ҐЄЇ ё й",
    "نص حكيم له سر قاطع وذو شأن عظيم مكتوب على ثوب أخضر ومغلف بجلد أزرق. مُحَمَّد لا إله",
    "דג סקרן שט בים מאוכזב ולפתע מצא חברה. שָׁלוֹם עֲלֵיכֶם",
    "ऋषियों को सताने वाले दुष्ट राक्षसों के राजा रावण का सर्वनाश करने वाले विष्णुवतार भगवान श्रीराम",
    "আমার সোনার বাংলা, আমি তোমায় ভালোবাসি। ক্ষ জ্ঞ",
    "யாமறிந்த மொழிகளிலே தமிழ்மொழி போல் இனிதாவது எங்கும் காணோம்",
    "เป็นมนุษย์สุดประเสริฐเลิศคุณค่า กว่าบรรดาฝูงสัตว์เดรัจฉาน",
    "ສະບາຍດີ ທຸກຄົນ", "မင်္ဂလာပါ", "ភាសាខ្មែរ", "བོད་སྐད་", "ქართული ენა", "Հայերեն լեզու", "አማርኛ ቋንቋ", "ᚠᚢᚦᚨᚱᚲ", "ᏣᎳᎩ ᎦᏬᏂᎯᏍᏗ",
    "我能吞下玻璃而不伤身体。我們在學習機器翻譯，這是一個測試！２０２４年１０月３１日",
    "いろはにほへと ちりぬるを。カタカナとひらがな、漢字混じりの文章です。ｶﾀｶﾅ がぎぐげご パピプペポ",
    "키스의 고유조건은 입술끼리 만나야 하고 특별한 기술은 필요치 않다. 각각 ㄱㄴㄷ",
    "Tiếng Việt: Quốc ngữ có dấu thanh, ổ, ữ, ặ, ệ. Đường",
    "𐍈𐌰𐌽𐌳 𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝕊𝕥𝕣𝕚𝕟𝕘 𝟙𝟚𝟛 ①②③ Ⅷ ⅷ ½ ¾ ² ³ ¹ ₁₂ ㊿ 𒀀𒁀 𓀀𓁐 𠀀𠮷 𰻞",
]
EMOJI = "😀 😂🤣 👍🏽 👨‍👩‍👧‍👦 🏳️‍🌈 🇩🇪🇫🇷 ❤️ ☺︎ 1️⃣ #️⃣ 🧑🏿‍🚀 🫠 🥹 © ™ ® ✓ ♞ ←→ ∀∃∑∫√∞ ≠≤≥ € £ ¥ ₿ ° № §".split(" ")
CODE = [
    "def f(x: int) -> str:\n    return f\"{x!r:>10}\"  # comment\n\n\nclass A(B):\n\tpass\n",
    "for (int i = 0; i < n; ++i) { a[i] += b[i] * 0x1F; } // C++\r\n#include <vector>\r\n",
    "func main() {\n\tif err := run(ctx, os.Args[1:]...); err != nil {\n\t\tlog.Fatalf(\"%v\", err)\n\t}\n}\n",
    "SELECT a.id, COUNT(*) FROM t AS a LEFT JOIN u ON a.id=u.id WHERE a.x LIKE '%y%' GROUP BY 1;",
    "{\"name\": \"value\", \"list\": [1, 2.5e-10, -3], \"nested\": {\"a\": null, \"b\": true}}",
    "<html lang=\"en\"><body class='x'>&nbsp;<!-- c --></body></html>",
    "\\begin{align} \\frac{\\partial f}{\\partial x} &= \\sum_{i=0}^{\\infty} x^i \\end{align}",
    "curl -sSL 'https://example.com/a/b?c=d&e=%20f#g' | jq '.[] | select(.x>1)' > /dev/null 2>&1",
    "a=b;c==d;e!=f;g<=h;i>=j;k&&l;m||n;!o;~p;q^r;s<<t;u>>v;w->x;y::z;A=>B;C...D;E..=F",
    "snake_case camelCase PascalCase SCREAMING_CASE kebab-case XMLHttpRequest iOS17 getHTTPResponseCode2xx",
    "v1.2.3-rc.4+build.5 192.168.0.1 fe80::1%eth0 2024-12-31T23:59:59.999Z +49 (0)30 1234567 user@example.com",
]
NUMBERS = "0 1 12 123 1234 12345 123456 1234567 1,234,567.89 3.14159265358979 1e10 0x7fff 0b1010 1/2 50% $19.99 -5 +7 ٠١٢٣٤٥ ०१२३ 一二三 １２３ 1234½ 12²3".split()
SPACES = [" ", "  ", "   ", "\t", "\n", "\r", "\r\n", "\n\n", "\n\n\n", " \n", "\n ", " \n ", "\t\n", "  \r\n  ", "\u00a0", "\u2003", "\u3000", "\u200b", "\u2028", "\u2029", "\u0085", "\u1680", "\ufeff", "\v", "\f", "\x1c", "\x1f", "\u180e", "\u2060", "▁", "▁▁", " ▁ "]
CONTROL = ["\x00", "a\x00b", "\x01\x02\x03", "\x7f", "\x80\x9f", "\u200d", "\u200e\u202b\u202c", "\ufffd", "\ufffe", "\uffff", "\U0010ffff", "\ue000", "\U000f0000", "\xad", "\u0378", "\U000e0041"]
MARKS = ["e\u0301", "\u0301", "a\u0301\u0301", "o\u0308\u0304", "\u0344", "A\u030a", "\u212b", "\u1e9b\u0323", "q\u0307\u0323", "q\u0323\u0307", "\u0958", "\u0915\u093c", "\u1100\u1161\u11a8", "\uac00\u11a8", "\u1100\u1161", "\u11a8", "\u0e33", "ﬁ", "ﬃ", "Ǆ", "①", "㍿", "x" + "\u0301" * 40, "z" + "\u0316\u0301" * 20 + "y", "\u0041\u0328\u0301", "\u2126", "\u2000\u2001", "\u0f71\u0f72\u0f74", "\u09c7\u09be", "\U0001d15f", "\u32ff", "a\u07fd\u0334", "\u08d3\u0301", "\U00011935\U00011930"]
SPECIAL = ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<tool_call>", "</tool_call>", "<s>", "</s>", "<unk>", "<bos>", "<eos>", "<pad>", "<start_of_turn>", "<end_of_turn>", "<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜tool▁calls▁begin｜>", "<|start|>", "<|channel|>", "<|message|>", "<|return|>", "<|fim_prefix|>", "<image_soft_token>", "<unused7>", "<0x0A>", "<0xFF>", "[INST]", "[/INST]", "<h1>", "</table>", "<turn>", "</turn>", "<x>", "<lone>"]


def fixed():
    yield ""
    yield from WORDS + CONTRACTIONS + SCRIPTS + EMOJI + CODE + NUMBERS + SPACES + CONTROL + MARKS + SPECIAL
    yield from (chr(c) for c in range(128))
    for s in SPACES:
        yield from ("a" + s + "b", s + "a", "a" + s, s + s, s * 17, "1" + s + "2", "." + s + ",", s + "中", "don't" + s + "'s")
    for s in SPECIAL:
        yield from (s + s, "a" + s, s + "a", " " + s + " ", s[:-1], s[1:], "x " + s + "\n\n" + s + " y", s.upper(), s.replace("<", "< "))
    for s in MARKS + CONTROL:
        yield from ("a" + s, s + "b", " " + s + " ", "é" + s, s * 3)
    for c in ["a", " ", "\n", "\t", "1", "-", "=", "中", "é", "😀", "\u0301", "▁", "ab", "a ", " a", "\r\n", "\n ", "A", "Aa", "'s", "。", "ـ", "\u200d", "<"]:
        for n in (2, 3, 5, 16, 31, 32, 33, 64, 129, 1000):
            yield c * n
    for c in "'’`":
        for w in ("s", "S", "t", "re", "RE", "Ve", "ll", "d", "M", "ſ", "x", "sx", "1", " s"):
            yield "a" + c + w
            yield c + w + " b"
    for s in CODE + SCRIPTS[:8]:
        yield from (s.upper(), s.lower(), s.replace(" ", "  "), s[::-1], unicodedata.normalize("NFD", s), " ".join(s))


def mixed(rng, pools, most=60):
    out = []
    for _ in range(rng.randint(1, most)):
        kind = rng.random()
        if kind < 0.7:
            out.append(rng.choice(rng.choice(pools)))
        elif kind < 0.8:
            out.append(rng.choice(SPACES) * rng.randint(1, 5))
        elif kind < 0.9:
            c = rng.randrange(0x30000) if rng.random() < 0.7 else rng.randrange(0x110000)
            out.append(" " if 0xD800 <= c < 0xE000 else chr(c))
        else:
            s = rng.choice(rng.choice(pools))
            i = rng.randint(0, len(s))
            out.append(s[i : i + rng.randint(1, 9)])
        if rng.random() < 0.5:
            out.append(" ")
    return "".join(out)


def fuzz(count, seed):
    """Random mixes of everything, from the seed."""
    rng = random.Random(seed)
    pools = [WORDS, WORDS, CONTRACTIONS, SCRIPTS, EMOJI, CODE, NUMBERS, SPACES, CONTROL, MARKS, SPECIAL]
    for _ in range(count):
        how = rng.random()
        if how < 0.6:
            yield mixed(rng, pools)
        elif how < 0.75:
            yield mixed(rng, [SPACES, MARKS, CONTROL, ["'", "s", "1", "a", "A", ".", "中"]], 12)
        elif how < 0.85:
            yield "".join(chr(rng.choice((rng.randrange(128), rng.randrange(0x250), rng.randrange(0x2000, 0x3100), rng.randrange(0xAC00, 0xD000), rng.randrange(0x1F300, 0x1FA00)))) for _ in range(rng.randint(1, 60)))
        elif how < 0.95:
            s = list(rng.choice(CODE + SCRIPTS))
            for _ in range(rng.randint(1, 6)):
                s[rng.randrange(len(s))] = rng.choice(rng.choice(pools))
            yield "".join(s)
        else:
            yield rng.choice(rng.choice(pools)) * rng.randint(2, 200)


def corpus():
    seen = dict.fromkeys(list(fixed()) + list(fuzz(250, 14)))
    return list(seen)
