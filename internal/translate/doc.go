// Package translate speaks two further APIs on top of /v1/chat/completions: the
// Anthropic Messages API (/v1/messages) and the OpenAI Responses API
// (/v1/responses).
//
// Goal: let a client of either be served by a prefill and decode pair whose engine
// pairs its legs by fields of the chat body only. SGLang's own /v1/messages and
// /v1/responses routes drop those fields, so a pair behind them refuses every
// request. Here the request becomes a chat body, the pair serves that, and its answer
// or event stream becomes the client's API again.
//
// Non-goals: sockets, pairing fields (the engine's dialect splices them into the chat
// body), stored state. Nothing here starts a goroutine, reads a clock or makes up a
// random id: ids derive from Options.ID.
//
// A request's life:
//
//	chat, x, err := translate.MessagesRequest(body, translate.Options{ID: id})
//	if err != nil { ... }            // an *openai.Error, status 400, with the field at fault
//	// send chat to /v1/chat/completions, then one of
//	answer, err := x.Answer(b, prompt) // status 200: an *EngineError or an *openai.Error
//	body := x.AppendError(nil, status, b)  // any other status
//	// or, for a stream,
//	s := x.Stream(prompt)
//	err = s.Feed(piece, write)       // for each piece, cut anywhere
//	err = s.End(write)               // at the end of the engine's stream
//	s.Fail(e, write)                 // reports an error from either, or one of the caller's
//
// # What becomes of a request's fields
//
// Values are spliced in as they are spelled: numbers, strings and schemas are not
// decoded and encoded again. Fields that neither API names (an engine's extensions:
// chat_template_kwargs, min_p, priority, rid, ...) go into the chat body under their
// own name. A field of the chat API that the translation writes itself, or whose
// answer has no place in the client's API (n, logprobs, ...), is refused. What asks
// for cheaper or faster delivery only (cache_control, service_tier, ...) is left out;
// what changes what the model sees or may do, and cannot be expressed in the chat API,
// is refused with status 400 and the code "untranslatable". Unknown members of messages,
// blocks, items and tools are left out.
//
// Both: all system messages become one leading message, joined by an empty line, since
// chat templates refuse a second one or one that is not the first. Adjacent messages of
// the user, or of the assistant, are joined in the same way. Tools other than the
// client's functions are left out with a note (Exchange.Note), or refused
// (Options.RefuseTools), and so are their calls and results in earlier turns.
//
// Messages API: system blocks are joined by a line feed, one text block is a plain
// string, and a tool without a description gets an empty one, so that the prompt is
// the one SGLang's own route would make. Thinking of earlier turns becomes
// reasoning_content. thinking sets enable_thinking and thinking in
// chat_template_kwargs (templates know one or the other) unless the client did;
// budget_tokens has no counterpart and is left out; display "omitted" is applied here.
// output_config.effort is reasoning_effort ("xhigh" is "max"), output_config.format
// is response_format. is_error of a tool result is left out: its text describes the
// error, and is "Error" if there is none. Text documents and search results become text. A last
// message by the assistant is continued only if the client also sends the engines'
// continue_final_message. context_management is left out: nothing is cleared.
// input_tokens of the answer does not count cached tokens, as in that API. In a
// stream the engine is asked for token counts in each event, so that message_start can
// have those of the prompt.
//
// Responses API: nothing is stored, and the answer says so ("store":false). store
// true, previous_response_id, conversation, background, prompt, item references
// and truncation "auto" are refused. Roles developer and system are both the system's.
// Reasoning items become reasoning_content of the assistant's message after them, those
// without text (encrypted) are left out. A tool_choice of allowed_tools is a shorter
// list of tools.
// reasoning.effort is reasoning_effort; summaries are not made, the engine's own
// reasoning is sent as reasoning_text. include takes message.output_text.logprobs and
// reasoning.encrypted_content (without effect: the reasoning is in plain text).
//
// # What the model generated
//
// No output of a model is an error: the engine has worked correctly. Arguments of a tool
// call are sent from the beginning of their JSON object to its end. The pieces of several
// calls may be interleaved (callTable): a Responses stream sends each under its output
// index, a Messages stream opens a block when the one before it has ended. A Messages
// answer needs an object: arguments that are not an object are wrapped (toolInput).
// Therefore a stream sends arguments only when they are complete and known to be an
// object, unless the client wants them as they come (eager_input_streaming). Unknown
// finish reasons count as stop; of several, the worst counts. A refusal is a text of its
// own. An answer is ended early by an error that the engine reported (EngineError), by
// bytes that are not a chat answer, and by a limit of the router (LimitError).
package translate
