package generate

import (
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

const done = "data: [DONE]\n\n"

// appendOpening appends the first events of a chat, which tell the role.
func (a *Answer) appendOpening(dst []byte) []byte {
	r := a.req
	for i := range a.seqs {
		s := &a.seqs[i]
		s.announced = true
		dst = a.appendIndex(dst, i)
		dst = openai.AppendString(append(dst, `,"delta":{"role":`...), r.Form.Role)
		dst = append(dst, `,"content":""},"logprobs":null,"finish_reason":null}]`...)
		dst = a.appendUsageSoFar(dst, s)
		dst = append(dst, `,"prompt_token_ids":`...)
		if r.Form.TokenIDs {
			dst = AppendIDs(dst, r.Prompts[s.prompt])
		} else {
			dst = append(dst, "null"...)
		}
		dst = append(dst, `,"prompt_text":null}`...)
		dst = append(dst, "\n\n"...)
	}
	for i := range a.seqs {
		s := &a.seqs[i]
		if s.prompt >= len(r.Form.Echo) || r.Form.Echo[s.prompt] == "" {
			continue
		}
		dst = a.appendIndex(dst, i)
		dst = openai.AppendString(append(dst, `,"delta":{"content":`...), r.Form.Echo[s.prompt])
		dst = append(dst, `},"logprobs":null,"finish_reason":null}]`...)
		dst = append(a.appendUsageSoFar(dst, s), "}\n\n"...)
	}
	return dst
}

func (a *Answer) appendIndex(dst []byte, i int) []byte {
	dst = append(append(dst, a.head...), `{"index":`...)
	return strconv.AppendInt(dst, int64(i), 10)
}

// appendDelta appends the event of what is new of a sequence.
func (a *Answer) appendDelta(dst []byte, s *sequence) []byte {
	if !s.news && !s.ended {
		return dst
	}
	dst = a.appendIndex(dst, s.index)
	if a.req.Route == openai.RouteChatCompletions {
		dst = append(appendText(append(dst, `,"delta":{"content":"`...), s.text), `"},"logprobs":`...)
	} else {
		dst = append(a.appendCompletionText(append(dst, `,"text":`...), s), `,"logprobs":`...)
	}
	dst = a.appendLogs(dst, s)
	dst = append(dst, `,"finish_reason":`...)
	dst = s.appendFinish(dst)
	if a.req.Route != openai.RouteChatCompletions {
		dst = append(dst, `,"stop_reason":`...)
		dst = s.appendStopReason(dst)
		dst = append(dst, `,"prompt_token_ids":`...)
		if !s.announced && (a.req.Form.TokenIDs || a.req.Form.Echo != nil) {
			dst = AppendIDs(dst, a.req.Prompts[s.prompt])
		} else {
			dst = append(dst, "null"...)
		}
	} else if s.ended {
		dst = append(dst, `,"stop_reason":`...)
		dst = s.appendStopReason(dst)
	}
	dst = append(dst, `,"token_ids":`...)
	dst = append(a.appendTokenIDs(dst, s), "}]"...)
	dst = a.appendUsageSoFar(dst, s)
	if s.ended && !a.req.Form.Usage {
		dst = a.appendFingerprint(dst)
	}
	s.announced, s.news = true, false
	s.text, s.ids = s.text[:0], s.ids[:0]
	s.logs.sent()
	return append(dst, "}\n\n"...)
}

// appendCompletionText appends the text of a completion that has not been sent yet, with the
// echo before the first.
func (a *Answer) appendCompletionText(dst []byte, s *sequence) []byte {
	if s.announced || s.prompt >= len(a.req.Form.Echo) {
		return appendQuoted(dst, s.text)
	}
	dst = openai.AppendString(dst, a.req.Form.Echo[s.prompt])
	return append(appendText(dst[:len(dst)-1], s.text), '"')
}

func (s *sequence) appendFinish(dst []byte) []byte {
	switch {
	case !s.ended:
		return append(dst, "null"...)
	case s.finish == Length:
		return append(dst, `"length"`...)
	case s.finish == Other:
		return openai.AppendString(dst, s.reason)
	}
	return append(dst, `"stop"`...)
}

// appendStopReason appends the stop string or the token that ended a sequence.
func (s *sequence) appendStopReason(dst []byte) []byte {
	switch {
	case s.ended && s.stop != "":
		return openai.AppendString(dst, s.stop)
	case s.ended && s.finish == Stopped && s.stopID >= 0:
		return strconv.AppendInt(dst, s.stopID, 10)
	}
	return append(dst, "null"...)
}

func (a *Answer) appendTokenIDs(dst []byte, s *sequence) []byte {
	if a.req.Form.TokenIDs {
		return AppendIDs(dst, s.ids)
	}
	return append(dst, "null"...)
}

// appendLogs appends the log probabilities that have not been sent yet.
func (a *Answer) appendLogs(dst []byte, s *sequence) []byte {
	l := &s.logs
	switch {
	case a.req.Form.Logprobs < 0:
		return append(dst, "null"...)
	case a.req.Route == openai.RouteChatCompletions:
		return append(append(append(dst, `{"content":[`...), l.content...), "]}"...)
	}
	var echo *logs
	if s.prompt < len(a.req.Form.Echo) && !s.announced {
		echo = &a.prompts[s.prompt].echo
	}
	list := func(name string, of func(*logs) []byte) {
		dst = append(dst, name...)
		mine := of(l)
		if echo != nil {
			prompt := of(echo)
			if dst = append(dst, prompt...); len(prompt) > 0 && len(mine) > 0 {
				dst = append(dst, ',')
			}
		}
		dst = append(append(dst, mine...), ']')
	}
	list(`{"text_offset":[`, func(l *logs) []byte { return l.offsets })
	list(`,"token_logprobs":[`, func(l *logs) []byte { return l.values })
	list(`,"tokens":[`, func(l *logs) []byte { return l.tokens })
	list(`,"top_logprobs":[`, func(l *logs) []byte { return l.tops })
	return append(dst, '}')
}

// appendUsageSoFar appends the count of tokens that each event of a stream may have.
func (a *Answer) appendUsageSoFar(dst []byte, s *sequence) []byte {
	if !a.req.Form.UsageAlways {
		return dst
	}
	dst = appendCounts(append(dst, ','), int64(len(a.req.Prompts[s.prompt])), int64(s.tokens))
	if a.req.Route == openai.RouteChatCompletions {
		dst = append(dst, `,"completion_tokens_details":null`...)
	}
	return append(dst, '}')
}

// appendCounts appends a usage object without its closing brace.
func appendCounts(dst []byte, prompt, completion int64) []byte {
	dst = strconv.AppendInt(append(dst, `"usage":{"prompt_tokens":`...), prompt, 10)
	dst = strconv.AppendInt(append(dst, `,"total_tokens":`...), prompt+completion, 10)
	return strconv.AppendInt(append(dst, `,"completion_tokens":`...), completion, 10)
}

func (a *Answer) appendFingerprint(dst []byte) []byte {
	if a.req.Form.Fingerprint == "" {
		return dst
	}
	return openai.AppendString(append(dst, `,"system_fingerprint":`...), a.req.Form.Fingerprint)
}

// appendEnding appends what follows the last choice of a stream.
func (a *Answer) appendEnding(dst []byte) []byte {
	if a.req.Form.Usage {
		dst = append(append(dst, a.head...), "],"...)
		dst = appendCounts(dst, a.req.PromptTokens(), a.Tokens())
		if cached := a.CachedTokens(); cached >= 0 {
			dst = strconv.AppendInt(append(dst, `,"prompt_tokens_details":{"cached_tokens":`...), cached, 10)
			dst = append(dst, '}')
		}
		dst = append(a.appendFingerprint(append(dst, '}')), "}\n\n"...)
	}
	return append(dst, done...)
}
