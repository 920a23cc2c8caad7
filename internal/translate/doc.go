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
// what changes what the model sees or may do, and cannot be said to the engine, is
// refused with status 400 and the code "untranslatable". Unknown members of messages,
// blocks, items and tools are left out.
//
// Both: what the system says, wherever it stands among the turns, becomes one leading
// message, turns joined by an empty line, since chat templates refuse a second one or
// one that is not the first. Neighbours of the user's and of the assistant's become one
// turn in the same way. Tools other than functions of the client's are left out
// with a note (Exchange.Note), or refused (Options.RefuseTools), and so is what they did
// in earlier turns.
//
// Messages API: system blocks are joined by a line feed, one text block is a plain
// string, and a tool without a description gets an empty one, so that the prompt is
// the one SGLang's own route would make. Thinking of earlier turns becomes
// reasoning_content. thinking sets enable_thinking and thinking in
// chat_template_kwargs (templates know one or the other) unless the client did;
// budget_tokens binds no engine and is left out; display "omitted" is obeyed here.
// output_config.effort is reasoning_effort ("xhigh" is "max"), output_config.format
// is response_format. is_error of a tool result is left out: its text tells; without one
// it is "Error". Documents that are text and search results become texts. A last
// message by the assistant is continued only if the client also sends the engines'
// continue_final_message. context_management is left out: nothing is cleared.
// input_tokens of the answer does not count cached tokens, as in that API. In a
// stream the engine is asked for its counts in each event, so that message_start can
// tell the prompt's.
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
// # What the model said
//
// Nothing that a model says is an error: the engine did its part. Arguments of a tool
// call are sent from the beginning of their JSON object to its end. Pieces of calls may
// come in turns (callTable): a Responses stream sends each under its output index, a
// Messages stream opens a block when the one before it has ended. A Messages answer
// needs an object: arguments that are none are wrapped (toolInput), so that a stream
// sends arguments only when they have ended and are known to be one, unless the client
// wants them as they come (eager_input_streaming). Unknown finish
// reasons are a stop, and of several the worst counts. A refusal is a text of its own. What ends an answer is an error that the engine told
// (EngineError), bytes that are no chat answer, or a bound of the router's own
// (LimitError).
package translate
