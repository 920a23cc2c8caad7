"""Records what jinja2 makes of the templates and snippets of this directory, in the environment of the transformers library.

    python3 record.py            (needs jinja2; the result is expected.json)
    python3 record.py DIRECTORY  (with the templates of test/tokenizers; the result is third-party.json, which has hashes only)
"""
import datetime
import hashlib
import json
import pathlib
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

here = pathlib.Path(__file__).parent
NOW = datetime.datetime(2026, 11, 30, 9, 5, 7)


class Generation(jinja2.ext.Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


def refuse(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


env = jinja2.sandbox.ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
)
env.filters["tojson"] = tojson
env.globals["raise_exception"] = refuse
env.globals["strftime_now"] = lambda f: NOW.strftime(f)

special = {"bos_token": "<s>", "eos_token": "</s>"}


def render(source, variables):
    try:
        return {"text": env.from_string(source).render(**{**special, **variables})}
    except Exception as e:  # whatever it is, the render fails
        return {"error": f"{type(e).__name__}: {e}"}


conversations = json.loads((here / "conversations.json").read_text())


def sha(text):
    return hashlib.sha256(text.encode()).hexdigest()


def variables(conversation):
    return {"tools": None, "documents": None, "add_generation_prompt": True, **conversation}


if len(sys.argv) > 1:
    conversations += json.loads((here / "conversations-more.json").read_text())
    sources = {p.name: p.read_text() for p in pathlib.Path(sys.argv[1]).glob("templates/*.jinja")}
    for path in pathlib.Path(sys.argv[1]).glob("*/tokenizer_config.json"):
        source = json.loads(path.read_text()).get("chat_template")
        if isinstance(source, str):
            sources[path.parent.name] = source
    hashes = {}
    for name, source in sorted(sources.items()):
        renders = [render(source, variables(c)) for c in conversations]
        hashes[sha(source)] = {"name": name, "renders": [sha(r["text"])[:16] if "text" in r else "" for r in renders]}
    (here / "third-party.json").write_text(json.dumps(hashes, indent=0) + "\n")
    sys.exit()

result = {"snippets": [], "templates": {}}
for line in (here / "snippets.txt").read_text().split("\n"):
    if line:
        base = {"messages": conversations[0]["messages"], "tools": None, "documents": None, "add_generation_prompt": True}
        result["snippets"].append({"source": line, **render(line, base)})
for path in sorted(here.glob("*.jinja")):
    source = path.read_text()
    renders = []
    for c in conversations:
        renders.append(render(source, variables(c)))
    result["templates"][path.name] = renders
(here / "expected.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
