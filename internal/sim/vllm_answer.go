package sim

import (
	"bytes"
	"fmt"
	"strconv"
	"sync"
	"time"
)

// vwriter renders one answer of a vLLM worker. Tokens of several sequences may
// come from as many goroutines.
type vwriter struct {
	// Immutable.
	w       *Worker
	o       *responseWriter
	req     *vrequest
	seqs    []*sequence
	id      string
	created int64
	head    []byte // of every object of the chat and completions APIs

	mu     sync.Mutex // guards the fields below
	number int        // of the next event of the responses API
}

func newVWriter(w *Worker, o *responseWriter, req *vrequest, seqs []*sequence) *vwriter {
	v := &vwriter{w: w, o: o, req: req, seqs: seqs, id: req.bodyID(), created: time.Now().Unix()}
	object := "text_completion"
	switch {
	case req.api == chat && o.stream:
		object = "chat.completion.chunk"
	case req.api == chat:
		object = "chat.completion"
	}
	b := appendQuoted([]byte(`{"id":`), v.id)
	b = fmt.Appendf(b, `,"object":%q,"created":%d,"model":`, object, v.created)
	v.head = append(appendQuoted(b, req.model), `,"choices":[`...)
	return v
}

// text appends the JSON of tokens from..to, without quotes.
func (v *vwriter) text(b []byte, s *sequence, from, to int) []byte {
	// With KV of another prompt the text is different, and the nonce is not in it.
	if v.w.opt.Backend == SGLang || v.o.nonce != nil && s.v.seed == s.v.prompt.hash {
		return v.o.tokens(b, from, to, v.o.token)
	}
	return v.o.tokens(b, from, to, func(b []byte, k int) []byte { return append(b, word(s.v.seed, k)...) })
}

// logs appends the logprobs of tokens from..to, if they were asked for.
func (v *vwriter) logs(b []byte, s *sequence, from, to int) []byte {
	return v.req.logs.value(b, v.req.api, from, to, func(k int) []byte { return v.text(nil, s, k, k+1) })
}

func (v *vwriter) counts() (prompt, out int) {
	for i, s := range v.seqs {
		if i%v.req.n == 0 {
			prompt += s.prompt
		}
		out += s.produced
	}
	return prompt, out
}

// cached is how many prompt tokens were not computed. Of several prompts the engine
// tells that of one only: the first in a stream, else the last.
func (v *vwriter) cached() int {
	if v.o.stream {
		return v.seqs[0].cached
	}
	return v.seqs[len(v.seqs)-1].cached
}

// details appends the details of the prompt's tokens. An event leaves out what is null.
func (v *vwriter) details(b []byte) []byte {
	b = append(strconv.AppendInt(append(b, `"prompt_tokens_details":{"cached_tokens":`...), int64(v.cached()), 10), `,"created_cache_tokens":`...)
	if v.req.api == chat {
		b = strconv.AppendInt(b, int64(v.seqs[0].created), 10)
	} else {
		b = append(b, "null"...)
	}
	b = append(b, `,"multimodal_tokens":null}`...)
	if v.o.stream {
		b = bytes.ReplaceAll(b, []byte(`,"created_cache_tokens":null`), nil)
		b = bytes.ReplaceAll(b, []byte(`,"multimodal_tokens":null`), nil)
	}
	return b
}

func (v *vwriter) usage(b []byte) []byte {
	prompt, out := v.counts()
	return fmt.Appendf(b, `"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d`, prompt, prompt+out, out)
}

// transfer is the answer's kv_transfer_params: those of one sequence only, the
// first prompt's last sample, however many there were.
func (v *vwriter) transfer(b []byte) []byte {
	b = append(b, `"kv_transfer_params":`...)
	if t := v.seqs[v.req.n-1].v.transfer; t != nil {
		return append(b, t...)
	}
	return append(b, "null"...)
}

// fingerprint names the engine's build.
const fingerprint = `"system_fingerprint":"vllm-` + vllmVersion + `-51a1ce00"`

// open sends the events that precede the tokens.
func (v *vwriter) open() error {
	switch v.req.api {
	case responses:
		return v.openResponse()
	case messages:
		return v.openMessage()
	}
	return nil
}

// token sends the token a sequence has just produced.
func (v *vwriter) token(s *sequence) error {
	switch v.req.api {
	case responses:
		return v.delta(s)
	case messages:
		return v.blockDelta(s)
	}
	last := s.produced == s.out
	if v.req.api == completions {
		return v.o.event(func(b []byte) []byte {
			b = append(append(append(b, v.head...), `{"index":`...), strconv.Itoa(s.index)...)
			b = append(v.text(append(b, `,"text":"`...), s, s.produced-1, s.produced), `","logprobs":`...)
			b = append(v.logs(b, s, s.produced-1, s.produced), `,"finish_reason":`...)
			if b = v.finish(b, s, last); !last {
				b = append(b, `,"stop_reason":null`...)
			}
			return append(v.appendFingerprint(append(b, `,"prompt_token_ids":null,"token_ids":null}]`...), last && !v.req.usage), '}')
		})
	}
	if s.produced == 1 {
		if err := v.role(s); err != nil {
			return err
		}
	}
	return v.o.event(func(b []byte) []byte {
		b = append(v.choice(b, s), `"content":"`...)
		b = append(v.text(b, s, s.produced-1, s.produced), `"},"logprobs":`...)
		b = append(v.logs(b, s, s.produced-1, s.produced), `,"finish_reason":`...)
		return append(v.appendFingerprint(append(v.finish(b, s, last), `,"token_ids":null}]`...), last && !v.req.usage), '}')
	})
}

func (v *vwriter) choice(b []byte, s *sequence) []byte {
	return append(strconv.AppendInt(append(append(b, v.head...), `{"index":`...), int64(s.index), 10), `,"delta":{`...)
}

// role sends a chat choice's first event, once.
func (v *vwriter) role(s *sequence) error {
	if s.v.begun {
		return nil
	}
	s.v.begun = true
	return v.o.event(func(b []byte) []byte {
		return append(v.choice(b, s), `"role":"assistant","content":""},"logprobs":null,"finish_reason":null}],"prompt_token_ids":null,"prompt_text":null}`...)
	})
}

// appendFingerprint appends the fingerprint, which only the last event has.
func (v *vwriter) appendFingerprint(b []byte, last bool) []byte {
	if !last {
		return b
	}
	return append(append(b, ','), fingerprint...)
}

// finish appends a choice's finish and stop reason.
func (v *vwriter) finish(b []byte, s *sequence, last bool) []byte {
	if !last {
		return append(b, "null"...)
	}
	return append(append(append(b, '"'), s.finish...), `","stop_reason":null`...)
}

// close sends the events that follow the tokens.
func (v *vwriter) close() error {
	var err error
	switch v.req.api {
	case responses:
		err = v.closeResponse()
	case messages:
		err = v.closeMessage()
	default:
		if v.req.usage {
			err = v.o.event(func(b []byte) []byte {
				b = v.usage(append(append(b, v.head...), "],"...))
				if v.w.opt.CacheReport {
					b = v.details(append(b, ','))
				}
				return append(v.appendFingerprint(append(b, '}'), true), '}')
			})
		}
	}
	if err != nil {
		return err
	}
	return v.o.done()
}

// whole is the answer that is not streamed.
func (v *vwriter) whole() []byte {
	switch v.req.api {
	case responses:
		return v.response(nil, v.status(), true)
	case messages:
		return v.message()
	}
	b := append([]byte(nil), v.head...)
	for i, s := range v.seqs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(strconv.AppendInt(append(b, `{"index":`...), int64(s.index), 10), ',')
		if v.req.api == chat {
			b = append(v.text(append(b, `"message":{"role":"assistant","content":"`...), s, 0, s.produced),
				`","refusal":null,"annotations":null,"audio":null,"function_call":null,"reasoning":null}`...)
		} else {
			b = append(v.text(append(b, `"text":"`...), s, 0, s.produced), '"')
		}
		b = append(v.finish(append(v.logs(append(b, `,"logprobs":`...), s, 0, s.produced), `,"finish_reason":`...), s, true), `,"token_ids":null`...)
		if v.req.api == completions {
			b = append(b, `,"prompt_logprobs":null,"prompt_token_ids":null`...)
		}
		b = append(b, `,"routed_experts":null}`...)
	}
	b = append(v.appendFingerprint(append(b, `],"service_tier":null`...), true), ',')
	b = append(v.usage(b), ',')
	if v.w.opt.CacheReport {
		b = v.details(b)
	} else {
		b = append(b, `"prompt_tokens_details":null`...)
	}
	b = append(b, `,"completion_tokens_details":null},`...)
	if v.req.api == chat {
		b = append(b, `"prompt_logprobs":null,"prompt_token_ids":null,"prompt_text":null,`...)
	}
	return append(v.transfer(b), `,"ec_transfer_params":null,"metrics":null}`...)
}

// scripted writes the fault's own events.
func (v *vwriter) scripted() error { return (&writer{o: v.o}).scripted() }
