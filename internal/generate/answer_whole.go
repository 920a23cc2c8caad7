package generate

import (
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
)

// appendWhole appends the body for a client that does not stream.
func (a *Answer) appendWhole(dst []byte) []byte {
	r := a.req
	chat := r.Route == openai.RouteChatCompletions
	dst = append(dst, a.head...)
	for i := range a.seqs {
		if i > 0 {
			dst = append(dst, ',')
		}
		if chat {
			dst = a.appendMessage(dst, &a.seqs[i])
		} else {
			dst = a.appendCompletion(dst, &a.seqs[i])
		}
	}
	dst = append(dst, `],"service_tier":null,"system_fingerprint":`...)
	if r.Form.Fingerprint == "" {
		dst = append(dst, "null"...)
	} else {
		dst = openai.AppendString(dst, r.Form.Fingerprint)
	}
	dst = appendCounts(append(dst, ','), r.PromptTokens(), a.Tokens())
	dst = append(dst, `,"prompt_tokens_details":`...)
	if cached := a.CachedTokens(); cached < 0 {
		dst = append(dst, "null"...)
	} else {
		dst = strconv.AppendInt(append(dst, `{"cached_tokens":`...), cached, 10)
		dst = append(dst, `,"created_cache_tokens":null,"multimodal_tokens":null}`...)
	}
	dst = append(dst, `,"completion_tokens_details":null},`...)
	if chat {
		dst = a.appendPromptLogs(append(dst, `"prompt_logprobs":`...), 0)
		dst = append(dst, `,"prompt_token_ids":`...)
		if r.Form.TokenIDs {
			dst = AppendIDs(dst, r.Prompts[0])
		} else {
			dst = append(dst, "null"...)
		}
		dst = append(dst, `,"prompt_text":null,`...)
	}
	return append(dst, `"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}`...)
}

func (a *Answer) appendMessage(dst []byte, s *sequence) []byte {
	r := a.req
	dst = strconv.AppendInt(append(dst, `{"index":`...), int64(s.index), 10)
	dst = openai.AppendString(append(dst, `,"message":{"role":`...), r.Form.Role)
	dst = a.appendCompletionText(append(dst, `,"content":`...), s)
	dst = append(dst, `,"refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null},"logprobs":`...)
	dst = a.appendLogs(dst, s)
	dst = a.appendEnd(dst, s)
	return append(dst, `,"routed_experts":null}`...)
}

func (a *Answer) appendCompletion(dst []byte, s *sequence) []byte {
	r := a.req
	dst = strconv.AppendInt(append(dst, `{"index":`...), int64(s.index), 10)
	dst = a.appendCompletionText(append(dst, `,"text":`...), s)
	dst = a.appendLogs(append(dst, `,"logprobs":`...), s)
	dst = a.appendEnd(dst, s)
	dst = a.appendPromptLogs(append(dst, `,"prompt_logprobs":`...), s.prompt)
	dst = append(dst, `,"prompt_token_ids":`...)
	if r.Form.TokenIDs {
		dst = AppendIDs(dst, r.Prompts[s.prompt])
	} else {
		dst = append(dst, "null"...)
	}
	return append(dst, `,"routed_experts":null}`...)
}

func (a *Answer) appendEnd(dst []byte, s *sequence) []byte {
	dst = s.appendFinish(append(dst, `,"finish_reason":`...))
	dst = s.appendStopReason(append(dst, `,"stop_reason":`...))
	return a.appendTokenIDs(append(dst, `,"token_ids":`...), s)
}

func (a *Answer) appendPromptLogs(dst []byte, prompt int) []byte {
	if logs := a.prompts[prompt].logs; len(logs) > 0 {
		return append(dst, logs...)
	}
	return append(dst, "null"...)
}
