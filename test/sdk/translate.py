"""Reads translated answers and streams with the official Python SDKs.

Started by TestSDKs of internal/translate, which serves canned engine answers:

    pip install openai anthropic
    SLUICE_SDK_PYTHON=python3 go test -run TestSDKs ./internal/translate/
"""

import sys

import anthropic
import openai
from anthropic.types import Message
from openai.types.responses import Response

base = sys.argv[1]
claude = anthropic.Anthropic(base_url=base, api_key="x", max_retries=0)
oai = openai.OpenAI(base_url=base + "/v1", api_key="x", max_retries=0)

TOOL_ANTHROPIC = {"name": "f", "description": "d", "input_schema": {"type": "object", "properties": {}}}
TOOL_OPENAI = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": False}


def check(what, got, want):
    assert got == want, f"{what}: got {got!r}, want {want!r}"


def raises(kind, call):
    try:
        call()
    except kind as e:
        return e
    raise AssertionError(f"{kind.__name__} was not raised")


def messages(model, **more):
    return dict(model=model, max_tokens=50, messages=[{"role": "user", "content": "hi"}], **more)


# Messages, whole. Validation against the model is strict, unlike the SDK's own reading.
m = claude.messages.create(**messages("text"))
Message.model_validate(m.model_dump())
check("text", m.content[0].text, "Hello \U0001f600\n")
check("stop", (m.stop_reason, m.usage.input_tokens, m.usage.cache_read_input_tokens, m.usage.output_tokens), ("end_turn", 7, 3, 4))

m = claude.messages.create(**messages("tools", tools=[TOOL_ANTHROPIC], tool_choice={"type": "auto"}))
Message.model_validate(m.model_dump())
check("blocks", [b.type for b in m.content], ["thinking", "text", "tool_use", "tool_use"])
check("input", m.content[2].input, {"a": 1})
check("stop", m.stop_reason, "tool_use")

# Messages, streamed.
with claude.messages.stream(**messages("text")) as s:
    check("text stream", "".join(s.text_stream), "Hello \U0001f600\n")
    check("final usage", s.get_final_message().usage.input_tokens, 7)
with claude.messages.stream(**messages("tools", tools=[TOOL_ANTHROPIC])) as s:
    final = s.get_final_message()
    Message.model_validate(final.model_dump(exclude={"parsed_output"}))
    check("blocks", [b.type for b in final.content], ["thinking", "text", "tool_use", "tool_use"])
    check("thinking", final.content[0].thinking, "hm")
    check("inputs", [b.input for b in final.content[2:]], [{"a": 1}, {}])
    check("stop", final.stop_reason, "tool_use")

# What a tool answered goes back, with the assistant's own turn as the SDK has it.
claude.messages.create(
    model="text", max_tokens=5, tools=[TOOL_ANTHROPIC],
    messages=[{"role": "user", "content": "hi"}, {"role": "assistant", "content": final.content},
              {"role": "user", "content": [{"type": "tool_result", "tool_use_id": b.id, "content": "ok"} for b in final.content[2:]]}])


def drain(stream):
    for _ in stream:
        pass


raises(anthropic.RateLimitError, lambda: claude.messages.create(**messages("busy")))
raises(anthropic.BadRequestError, lambda: claude.messages.create(**messages("text", extra_body={"mcp_servers": [{"url": "x"}]})))
raises(anthropic.APIStatusError, lambda: drain(claude.messages.create(**messages("broken", stream=True))))

# What the model refuses or gets wrong is the same in both ways.
for model, stop in (("refusal", "refusal"), ("cut", "tool_use")):
    whole = claude.messages.create(**messages(model, tools=[TOOL_ANTHROPIC]))
    with claude.messages.stream(**messages(model, tools=[TOOL_ANTHROPIC])) as s:
        final = s.get_final_message()
    said = [[getattr(b, "text", None) or b.input for b in m.content] for m in (whole, final)]
    check(model, said[1], said[0])
    check(model, (whole.stop_reason, final.stop_reason), (stop, stop))
check("input", whole.content[0].input, {"INVALID_JSON": '{"a":1,'})

# Responses, whole.
r = oai.responses.create(model="text", input="hi")
Response.model_validate(r.model_dump())
check("text", r.output_text, "Hello \U0001f600\n")
check("usage", (r.usage.input_tokens, r.usage.input_tokens_details.cached_tokens, r.usage.total_tokens), (10, 3, 14))
r = oai.responses.create(model="tools", input="hi", tools=[TOOL_OPENAI], reasoning={"effort": "low"}, metadata={"k": "v"})
Response.model_validate(r.model_dump())
check("items", [i.type for i in r.output], ["reasoning", "message", "function_call", "function_call"])
check("arguments", r.output[2].arguments, '{"a":1}')

# Responses, streamed.
with oai.responses.stream(model="text", input="hi") as s:
    drain(s)
    check("final", s.get_final_response().output_text, "Hello \U0001f600\n")
with oai.responses.stream(model="tools", input="hi", tools=[TOOL_OPENAI]) as s:
    kinds = [e.type for e in s]
    final = s.get_final_response()
    check("items", [i.type for i in final.output], ["reasoning", "message", "function_call", "function_call"])
    assert "response.reasoning_text.delta" in kinds and "response.function_call_arguments.done" in kinds, kinds
for e in oai.responses.create(model="tools", input="hi", tools=[TOOL_OPENAI], stream=True):
    type(e).model_validate(e.model_dump(by_alias=True))

with oai.responses.stream(model="refusal", input="hi") as s:
    drain(s)
    parts = s.get_final_response().output[0].content
    check("parts", [getattr(p, "text", None) or p.refusal for p in parts], ["Well.", "I can't."])
check("parts", oai.responses.create(model="refusal", input="hi").output[0].content[1].refusal, "I can't.")

# Its own output goes back as input.
oai.responses.create(model="text", input=[{"role": "user", "content": "hi"}]
                     + [i.model_dump(exclude_none=True, by_alias=True) for i in r.output]
                     + [{"type": "function_call_output", "call_id": i.call_id, "output": "ok"} for i in r.output[2:]])

raises(openai.RateLimitError, lambda: oai.responses.create(model="busy", input="hi"))
raises(openai.BadRequestError, lambda: oai.responses.create(model="text", input="hi", previous_response_id="resp_1"))
last = list(oai.responses.create(model="broken", input="hi", stream=True))[-1]
check("broken", (last.type, last.response.error.message), ("response.failed", "KV transfer failed"))
print("ok")
