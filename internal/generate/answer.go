package generate

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/stopwords"
)

// Answer makes the API's answer of what an engine tells about a request: server-sent events
// for a client that streams, else one JSON body. The bytes are those that vLLM gives over
// HTTP, field for field.
//
//	var a generate.Answer
//	a.Begin(r, id, created)
//	for each event of the engine {
//		dst, err = a.Event(dst[:0], &event)
//	}
//	dst, err = a.End(dst)
//
// The zero value is ready for Begin, and a value may be used for one request after another; it
// keeps its memory. It is not safe for concurrent use. Events of several sequences may come in
// any order.
//
// Rules of the text: stop strings are the engine's to find, but are looked for here too, and
// the text ends with the first one whoever found it. The token that ended a sequence, an end of
// sequence or one of Sampling.StopIDs, has no text unless Sampling.IncludeStop is set.
type Answer struct {
	req     *Request
	fault   *EngineError // the first one; nothing is answered after it
	stops   stopwords.Set
	seqs    []sequence
	prompts []promptState
	open    int // sequences that neither the engine nor a stop string has ended
	begun   bool

	head  []byte // of each event, or of the whole body, up to the choices
	piece []byte // the text of one token
}

// promptState is what is told once for each prompt.
type promptState struct {
	cached int64  // tokens of it that were not computed, -1: not told
	seen   bool   // its log probabilities were told, or will not be
	logs   []byte // JSON of prompt_logprobs; empty: none
	echo   logs   // the log probabilities of an echoed prompt
}

// Begin begins the answer to r, which must stay as it is until End. id is the request's own,
// without the API's prefix; created is in seconds since 1970.
func (a *Answer) Begin(r *Request, id string, created int64) {
	a.req, a.fault, a.begun = r, nil, false
	n := len(r.Prompts) * r.Samples
	a.open = n
	if err := a.stops.Compile(r.Sampling.Stop, r.Sampling.IncludeStop); err != nil {
		// Read bounds them, so these are the engine's alone to find.
		_ = a.stops.Compile(nil, false)
	}
	a.seqs = resize(a.seqs, n)
	for i := range a.seqs {
		a.seqs[i].begin(a, i)
	}
	a.prompts = resize(a.prompts, len(r.Prompts))
	for i := range a.prompts {
		p := &a.prompts[i]
		p.cached, p.seen, p.logs = -1, false, p.logs[:0]
		p.echo.reset()
	}
	prefix, object := "cmpl-", "text_completion"
	if r.Route == openai.RouteChatCompletions {
		prefix, object = "chatcmpl-", "chat.completion"
		if r.Stream {
			object = "chat.completion.chunk"
		}
	}
	b := a.head[:0]
	if r.Stream {
		b = append(b, "data: "...)
	}
	b = openai.AppendString(append(b, `{"id":`...), prefix+id)
	b = append(append(append(b, `,"object":"`...), object...), `","created":`...)
	b = strconv.AppendInt(b, created, 10)
	b = openai.AppendString(append(b, `,"model":`...), r.Model)
	a.head = append(b, `,"choices":[`...)
}

func resize[T any](s []T, n int) []T {
	if n <= cap(s) {
		return s[:n]
	}
	return append(slices.Grow(s[:cap(s)], n-cap(s)), make([]T, n-cap(s))...)
}

// Event takes what the engine told of one sequence, and appends to dst what the client gets of
// it now; nothing for a client that does not stream. The error is an *EngineError: the answer
// ends there, and dst has nothing of the event. Events that follow the end of a sequence by a
// stop string that the engine has not found are dropped.
func (a *Answer) Event(dst []byte, e *Event) ([]byte, error) {
	if a.fault != nil {
		return dst, a.fault
	}
	r := a.req
	if e.Prompt < 0 || e.Prompt >= len(r.Prompts) || e.Sample < 0 || e.Sample >= r.Samples {
		return dst, a.fail("the engine told of sequence %d of prompt %d, which was not asked for", e.Sample, e.Prompt)
	}
	s := &a.seqs[e.Prompt*r.Samples+e.Sample]
	if s.told {
		return dst, a.fail("the engine went on with a sequence after it had told its end")
	}
	s.told = e.Finish != Running
	if s.ended {
		return dst, nil
	}
	switch e.Finish {
	case Failed, Aborted:
		f := a.fail("the engine could not go on with the request")
		if e.Finish == Aborted {
			f.Message = "the engine ended the request before it was done"
		}
		f.Finish = e.Finish
		return dst, f
	}
	for _, id := range e.IDs {
		if uint64(id) >= uint64(r.Vocab) {
			return dst, a.fail("the engine told the token id %d; the model has %d", id, r.Vocab)
		}
	}
	if want := r.Sampling.Logprobs; want >= 0 && len(e.Logprobs) != len(e.IDs) {
		return dst, a.fail("the engine told %d log probabilities with %d tokens", len(e.Logprobs), len(e.IDs))
	}
	if int64(s.tokens)+int64(len(e.IDs)) > int64(s.limit) {
		return dst, a.fail("the engine generated more than the %d tokens that it was asked for", s.limit)
	}
	if f := a.prompt(e); f != nil {
		return dst, f
	}
	if !a.begun {
		a.begun = true
		if r.Stream && r.Route == openai.RouteChatCompletions {
			dst = a.appendOpening(dst)
		}
	}
	if !s.take(a, e) && r.Stream {
		dst = a.appendDelta(dst, s)
	}
	return dst, nil
}

// prompt takes what an event tells of its prompt.
func (a *Answer) prompt(e *Event) *EngineError {
	p := &a.prompts[e.Prompt]
	if e.CachedTokens >= 0 && p.cached < 0 {
		p.cached = min(e.CachedTokens, int64(len(a.req.Prompts[e.Prompt])))
	}
	if p.seen || a.req.Sampling.PromptLogprobs < 0 {
		return nil
	}
	if len(e.PromptLogprobs) == 0 {
		if len(e.IDs) > 0 || e.Finish != Running {
			p.seen = true
			a.echoUnknown(p, a.req.Prompts[e.Prompt])
		}
		return nil
	}
	p.seen = true
	ids := a.req.Prompts[e.Prompt]
	if len(e.PromptLogprobs) != len(ids) {
		return a.fail("the engine told log probabilities of %d tokens of a prompt of %d", len(e.PromptLogprobs), len(ids))
	}
	for i := range e.PromptLogprobs {
		if l := &e.PromptLogprobs[i]; l.ID != ids[i] {
			return a.fail("the engine told log probabilities of another prompt's tokens")
		}
	}
	a.promptLogprobs(p, e.PromptLogprobs)
	return nil
}

// Stopped reports whether a sequence has ended with a stop string before the engine told its
// end: nothing more is needed of it.
func (a *Answer) Stopped(prompt, sample int) bool {
	i := prompt*a.req.Samples + sample
	return prompt >= 0 && sample >= 0 && sample < a.req.Samples && i < len(a.seqs) && a.seqs[i].ended && !a.seqs[i].told
}

// Done reports whether all sequences have ended, by the engine's word or with a stop string.
func (a *Answer) Done() bool { return a.open == 0 }

// End appends what ends the answer: the last events, or the whole body. The error is an
// *EngineError: some sequence has not ended.
func (a *Answer) End(dst []byte) ([]byte, error) {
	if a.fault != nil {
		return dst, a.fault
	}
	if a.open > 0 {
		return dst, a.fail("the engine's answer ended before all of its %d sequences did", len(a.seqs))
	}
	if a.req.Stream {
		return a.appendEnding(dst), nil
	}
	return a.appendWhole(dst), nil
}

// Tokens is the number of tokens generated so far.
func (a *Answer) Tokens() int64 {
	var n int64
	for i := range a.seqs {
		n += int64(a.seqs[i].tokens)
	}
	return n
}

// CachedTokens is how many tokens of the prompts were not computed, -1 if the engine did not
// tell.
func (a *Answer) CachedTokens() int64 {
	n := int64(-1)
	for i := range a.prompts {
		if c := a.prompts[i].cached; c >= 0 {
			n = max(n, 0) + c
		}
	}
	return n
}

// Release forgets the request, and gives back memory that only large answers need. Without it
// a value that waits for its next request keeps both.
func (a *Answer) Release() {
	a.req = nil
	a.stops.Clear()
	if cap(a.seqs) > 16 {
		a.seqs = nil
	}
	if cap(a.prompts) > 16 {
		a.prompts = nil
	}
	seqs, prompts := a.seqs[:cap(a.seqs)], a.prompts[:cap(a.prompts)]
	for i := range seqs {
		seqs[i].release()
	}
	for i := range prompts {
		prompts[i].logs = trim(prompts[i].logs)
		prompts[i].echo.release()
	}
	a.head, a.piece = trim(a.head), trim(a.piece)
}

// maxKept is the largest buffer that is kept for the next request, in bytes.
const maxKept = 16 << 10

func trim(b []byte) []byte {
	if cap(b) > maxKept {
		return nil
	}
	return b[:0]
}

func (a *Answer) fail(format string, args ...any) *EngineError {
	a.fault = &EngineError{Message: fmt.Sprintf(format, args...)}
	return a.fault
}
