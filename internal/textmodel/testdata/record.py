"""Records what vLLM's HTTP server gives to chat templates: the text, or that it refuses the request.

    python3 record.py        (needs vllm; the result is rendered.json)

The templates are those of chattemplate/testdata.
"""
import json
import logging
import pathlib
from types import SimpleNamespace

logging.disable(logging.CRITICAL)

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.renderers.chat_utils import parse_chat_messages
from vllm.renderers.hf import (
    _consolidate_system_messages,
    _convert_developer_to_system,
    _detect_content_format,
    _detect_developer_role_support,
)
from transformers.utils.chat_template_utils import render_jinja_template

here = pathlib.Path(__file__).parent
templates = here.parent.parent / "chattemplate" / "testdata"
model = SimpleNamespace(enable_prompt_embeds=False, multimodal_config=None)
passed = {"tools", "documents", "add_generation_prompt", "continue_final_message"}


def render(source, body):
    request = ChatCompletionRequest.model_validate(body)
    kwargs = request.build_chat_params(source, "auto").chat_template_kwargs
    messages, _, _ = parse_chat_messages(request.messages, model, _detect_content_format(source, default="string"))
    tools = None if request.tools is None else [t.model_dump() for t in request.tools]
    if {"messages", "tools", "tokenize", "chat_template"} & kwargs.keys():
        raise ValueError("reserved")
    if any(m["role"] == "developer" for m in messages) and not _detect_developer_role_support(source):
        messages = _consolidate_system_messages(_convert_developer_to_system(messages))
    if not messages:
        raise ValueError("empty")
    if kwargs.get("continue_final_message") and kwargs.get("add_generation_prompt"):
        raise ValueError("both")
    variables = {"bos_token": "<s>", "eos_token": "</s>"} | {k: v for k, v in kwargs.items() if k not in passed}
    texts, _ = render_jinja_template(
        [messages], tools=tools, documents=kwargs.get("documents"), chat_template=source,
        continue_final_message=kwargs.get("continue_final_message", False),
        add_generation_prompt=kwargs.get("add_generation_prompt", False), **variables,
    )
    return texts[0]


result = {}
bodies = json.loads((here / "bodies.json").read_text())
for name in ["chatml-tools", "macros-xml", "inst", "plain"]:
    source = (templates / f"{name}.jinja").read_text()
    renders = []
    for body in bodies:
        try:
            renders.append({"text": render(source, json.loads(json.dumps(body)))})
        except Exception as e:
            renders.append({"error": f"{type(e).__name__}: {e}"[:160]})
    result[name] = renders
(here / "rendered.json").write_text(json.dumps(result, indent=1, ensure_ascii=False) + "\n")
