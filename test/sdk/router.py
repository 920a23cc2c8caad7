"""Drives a router with the official Python SDKs.

    router.py serve BASE [without-tools]
                                  calls that are to succeed, on every API; those with
                                  tools are to be refused if there are none
    router.py refused BASE STATUS calls that are to be refused with that status
    router.py leave BASE          streams that are left in their middle

Prints a line for each check and a count at the end; exits with 1 if one failed.
The model is named "tiny". Its text means nothing, so nothing is asked of it but
to be there, and to be the same whether it is streamed or not.
"""

import sys

import anthropic
import openai

mode, base = sys.argv[1], sys.argv[2]
oai = openai.OpenAI(base_url=base + "/v1", api_key="none", max_retries=0, timeout=120)
claude = anthropic.Anthropic(base_url=base, api_key="none", max_retries=0, timeout=120)

ASK = [{"role": "user", "content": "Why is the sky blue, and the river not? Answer at some length, please."}]
PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Lisbon", "Oslo"]}},
    "required": ["city"],
    "additionalProperties": False,
}
counts = {"passed": 0, "failed": 0}


def check(name, run):
    """Counts what a check returns: None, or a note, if it passed."""
    try:
        note = run()
    except Exception as e:
        counts["failed"] += 1
        print(f"FAIL {name}: {type(e).__name__}: {str(e)[:300]}")
        return
    counts["passed"] += 1
    print(f"ok   {name}" + (f": {note}" if note else ""))


def want(what, got, wanted):
    if got != wanted:
        raise AssertionError(f"{what}: got {got!r}, want {wanted!r}")


def chat(**more):
    return oai.chat.completions.create(**{"model": "tiny", "messages": ASK, "max_tokens": 20, "temperature": 0, **more})


def completion(**more):
    return oai.completions.create(**{"model": "tiny", "prompt": ASK[0]["content"], "max_tokens": 20, "temperature": 0, **more})


def response(**more):
    return oai.responses.create(**{"model": "tiny", "input": ASK[0]["content"], "max_output_tokens": 20, "temperature": 0, **more})


def message(**more):
    # The SDK has no parameter for the temperature any more.
    return claude.messages.create(**{"model": "tiny", "messages": ASK, "max_tokens": 20, "extra_body": {"temperature": 0}, **more})


# Each API's call, and the text of its answer and of its stream.


def chat_stream_text():
    text, usage = "", None
    with chat(stream=True, stream_options={"include_usage": True}) as events:
        for event in events:
            if event.choices:
                text += event.choices[0].delta.content or ""
            usage = event.usage or usage
    want("completion tokens", usage.completion_tokens, 20)
    return text


def completion_stream_text():
    with completion(stream=True) as events:
        return "".join(event.choices[0].text for event in events if event.choices)


def response_stream_text():
    text, last = "", None
    with response(stream=True) as events:
        for event in events:
            last = event.type
            if last == "response.output_text.delta":
                text += event.delta
    if last not in ("response.completed", "response.incomplete"):
        raise AssertionError(f"the stream ends with {last}")
    return text


def message_stream_text():
    with claude.messages.stream(model="tiny", messages=ASK, max_tokens=20, extra_body={"temperature": 0}) as stream:
        text = "".join(stream.text_stream)
        want("stop reason", stream.get_final_message().stop_reason, "max_tokens")
    return text


def same(whole, streamed):
    def run():
        a, b = whole(), streamed()
        if not a:
            raise AssertionError("there is no text")
        want("the streamed text", b, a)
        return repr(a[:30])

    return run


def samples():
    want("choices", len(chat(n=3, temperature=1).choices), 3)
    texts = {}
    with chat(n=2, temperature=1, stream=True) as events:
        for event in events:
            for choice in event.choices:
                texts[choice.index] = texts.get(choice.index, "") + (choice.delta.content or "")
    want("choices in the stream", sorted(texts), [0, 1])


def batch():
    want("answers", [c.index for c in completion(prompt=[ASK[0]["content"], "And why is grass green, then, of all things?"]).choices], [0, 1])


TOOL = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
NAMED = {"type": "function", "function": {"name": "weather"}}


def chat_tool():
    calls = chat(tools=[TOOL], tool_choice=NAMED, max_tokens=100).choices[0].message.tool_calls
    want("names", [c.function.name for c in calls], ["weather"])
    return calls[0].function.arguments


def chat_tool_stream():
    name, arguments = "", ""
    with chat(tools=[TOOL], tool_choice=NAMED, max_tokens=100, stream=True) as events:
        for event in events:
            for choice in event.choices:
                for call in choice.delta.tool_calls or []:
                    name += call.function.name or ""
                    arguments += call.function.arguments or ""
    want("name", name, "weather")
    return arguments


def message_tool():
    tool = {"name": "weather", "description": "Tells the weather", "input_schema": PARAMETERS}
    message(tools=[tool], max_tokens=60)  # a random model need not use it


def raises(kind, status, call):
    def run():
        try:
            call()
        except kind as e:
            want("status", e.status_code, status)
            if not e.message:
                raise AssertionError("there is no message")
            return e.message[:100]
        raise AssertionError(f"{kind.__name__} was not raised")

    return run


if mode == "serve":
    check("models", lambda: want("ids", [m.id for m in oai.models.list()], ["tiny"]))
    check("chat", same(lambda: chat().choices[0].message.content, chat_stream_text))
    check("completions", same(lambda: completion().choices[0].text, completion_stream_text))
    check("responses", same(lambda: response().output_text, response_stream_text))
    check("messages", same(lambda: message().content[0].text, message_stream_text))
    check("chat, n", samples)
    check("completions, two prompts", batch)
    if "without-tools" in sys.argv:
        for name, call, lib in [("chat", chat_tool, openai), ("chat", chat_tool_stream, openai), ("messages", message_tool, anthropic)]:
            check(f"{name}, a tool", raises(lib.BadRequestError, 400, call))
    else:
        check("chat, a tool", chat_tool)
        check("chat, a tool, streamed", chat_tool_stream)
        check("messages, a tool", message_tool)
    check("messages, counting tokens", lambda: claude.messages.count_tokens(model="tiny", messages=ASK).input_tokens)
    for name, call, lib in [("chat", chat, openai), ("completions", completion, openai), ("responses", response, openai), ("messages", message, anthropic)]:
        limit = "max_output_tokens" if call is response else "max_tokens"
        check(f"{name}, an unknown model", raises(lib.NotFoundError, 404, lambda: call(model="other")))
        check(f"{name}, too many tokens", raises(lib.BadRequestError, 400, lambda: call(**{limit: 100000})))
        check(f"{name}, a hand-off of the client's", raises(lib.BadRequestError, 400, lambda: call(extra_body={"kv_transfer_params": {"do_remote_prefill": True}})))
elif mode == "refused":
    status = int(sys.argv[3])
    kinds = {
        429: (openai.RateLimitError, anthropic.RateLimitError),
        503: (openai.InternalServerError, anthropic.InternalServerError),
    }[status]
    for name, call, kind in [("chat", chat, 0), ("completions", completion, 0), ("responses", response, 0), ("messages", message, 1)]:
        for stream in (False, True):
            check(f"{name}, stream={stream}", raises(kinds[kind], status, lambda: call(stream=stream)))
elif mode == "leave":
    for name, call in [("chat", chat), ("completions", completion), ("responses", response), ("messages", message)]:

        def leave():
            limit = "max_output_tokens" if call is response else "max_tokens"
            events = iter(stream := call(stream=True, **{limit: 800}))
            next(events), next(events)
            stream.close()

        check(f"{name}, left", leave)
else:
    sys.exit(__doc__)

print(f"{counts['passed']} passed, {counts['failed']} failed")
sys.exit(counts["failed"] > 0)
