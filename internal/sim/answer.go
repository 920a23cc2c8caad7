package sim

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"sync"
	"time"
)

// writer renders one request's answer in its API's shape.
type writer struct {
	w       *Worker
	o       *responseWriter
	req     *request
	head    []byte // the start of every JSON object of an OpenAI answer
	started time.Time
}

// answer runs the sequences and writes what they produce.
func (w *Worker) answer(ctx context.Context, l *lifetime, o *responseWriter, req *request, seqs []*sequence) error {
	a := &writer{w: w, o: o, req: req, started: time.Now()}
	if req.api != generate {
		a.head = a.openAIHead()
	}
	if req.n > 1 && w.role != Regular && !w.opt.PerSampleRooms {
		return w.stall(ctx, o, req, seqs)
	}
	emit := func(*sequence) error { return nil }
	if o.stream {
		emit = a.event
	}
	err := w.runAll(ctx, l, seqs, emit)
	w.note(func() { o.rec.Cached = cachedOf(seqs, req.n) })
	if errors.Is(err, errAborted) && context.Cause(ctx) == errAborted {
		// Not a failure: the output so far is sent, with finish_reason "abort".
		for _, s := range seqs {
			s.finish = "abort"
			if o.stream {
				if e := a.last(s); e != nil {
					return e
				}
			}
		}
		err = nil
	}
	if err != nil {
		var wire *wireError
		if !errors.As(err, &wire) {
			return err
		}
		return o.fail(err, req.api == generate)
	}
	if len(o.fault.Events) > 0 {
		return a.scripted()
	}
	if !o.stream {
		return a.whole(seqs)
	}
	if req.usage && req.api != generate {
		if err := o.event(func(b []byte) []byte { return a.usageEvent(b, seqs) }); err != nil {
			return err
		}
	}
	return o.done()
}

// runAll runs the sequences side by side; the first failure ends the others.
func (w *Worker) runAll(ctx context.Context, l *lifetime, seqs []*sequence, emit func(*sequence) error) error {
	if len(seqs) == 1 {
		return w.run(ctx, l, seqs[0], emit)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for _, s := range seqs {
		wg.Go(func() {
			if err := w.run(ctx, l, s, emit); err != nil {
				once.Do(func() { first = err })
				cancel(err)
			}
		})
	}
	wg.Wait()
	return first
}

// stall is what happens to n>1 samples with one room: all but the first wait for KV
// that only the first got, until the bootstrap timeout.
func (w *Worker) stall(ctx context.Context, o *responseWriter, req *request, seqs []*sequence) error {
	w.fleet.broker.violate(w, RoomShared, seqs[0].room, "n=%d over one room", req.n)
	ctx, cancel := context.WithTimeoutCause(ctx, w.opt.BootstrapTimeout,
		abortf(500, "KV transfer failed for room %d: shared by %d samples", seqs[0].room, req.n))
	defer cancel()
	for _, s := range seqs {
		w.move(s, bootstrap)
		defer w.move(s, none)
	}
	<-ctx.Done()
	err := context.Cause(ctx)
	var wire *wireError
	if errors.As(err, &wire) {
		return o.fail(err, req.api == generate)
	}
	return err
}

// noncePrefix begins a word that the output repeats.
const noncePrefix = "nonce-"

// nonceOf is the first word of a body that begins with noncePrefix, of letters and
// digits behind it, nil if there is none.
func nonceOf(body []byte) []byte {
	i := bytes.Index(body, []byte(noncePrefix))
	if i < 0 {
		return nil
	}
	end := i + len(noncePrefix)
	for end < len(body) && end < i+64 && (body[end] >= '0' && body[end] <= '9' || body[end] >= 'A' && body[end] <= 'Z' || body[end] >= 'a' && body[end] <= 'z') {
		end++
	}
	return bytes.Clone(body[i:end])
}

// tokens appends the JSON of the text of output tokens from..to, without quotes: the
// fault's tokens, else those that token appends.
func (o *responseWriter) tokens(b []byte, from, to int, token func(b []byte, k int) []byte) []byte {
	f := o.fault
	for k := from; k < to; k++ {
		at := len(b)
		if len(f.Tokens) > 0 {
			if k < len(f.Tokens) {
				q := appendQuoted(nil, f.Tokens[k])
				b = append(b, q[1:len(q)-1]...)
			}
		} else {
			b = token(b, k)
		}
		for len(b)-at < f.TokenSize {
			b = append(b, 'x')
		}
	}
	return b
}

// numberedToken appends output token k of an SGLang worker.
func numberedToken(b []byte, k int) []byte {
	return strconv.AppendInt(append(b, " t"...), int64(k+1), 10)
}

// token appends output token k of an SGLang worker: a number, with the nonce of the request
// before it if there is one.
func (o *responseWriter) token(b []byte, k int) []byte {
	if o.nonce == nil {
		return numberedToken(b, k)
	}
	return strconv.AppendInt(append(append(append(b, ' '), o.nonce...), '.'), int64(k+1), 10)
}

// text appends the JSON of the text of tokens from..to, without quotes.
func (a *writer) text(b []byte, from, to int) []byte { return a.o.tokens(b, from, to, a.o.token) }

// logs appends the logprobs of tokens from..to, if they were asked for.
func (a *writer) logs(b []byte, from, to int) []byte {
	return a.req.logs.value(b, a.req.api, from, to, func(k int) []byte { return a.text(nil, k, k+1) })
}

func (a *writer) openAIHead() []byte {
	b := []byte(`{"id":`)
	b = appendQuoted(b, a.req.rid)
	object := "text_completion"
	switch {
	case a.req.api == chat && a.o.stream:
		object = "chat.completion.chunk"
	case a.req.api == chat:
		object = "chat.completion"
	}
	b = fmt.Appendf(b, `,"object":"%s","created":%d,"model":`, object, time.Now().Unix())
	model := a.req.model
	if model == "" {
		model = a.w.opt.Model
	}
	return append(appendQuoted(b, model), `,"choices":[`...)
}

// event sends a token of a stream, with the events that precede the first token and
// follow the last.
func (a *writer) event(s *sequence) error {
	if len(a.o.fault.Events) > 0 {
		return nil
	}
	if a.req.api == chat && s.produced == 1 {
		if err := a.o.event(func(b []byte) []byte {
			b = a.choice(b, s)
			return append(b, `"delta":{"role":"assistant","content":""},"logprobs":null,"finish_reason":null,"matched_stop":null}],"usage":null}`...)
		}); err != nil {
			return err
		}
	}
	err := a.o.event(func(b []byte) []byte {
		switch a.req.api {
		case generate:
			return a.generated(b, s, s.produced == s.out)
		case completions:
			b = append(a.choice(b, s), `"text":"`...)
			b = append(a.text(b, s.produced-1, s.produced), `","logprobs":`...)
			b = append(a.logs(b, s.produced-1, s.produced), `,"finish_reason":`...)
			if s.produced == s.out {
				b = append(append(append(b, '"'), s.finish...), '"')
			} else {
				b = append(b, "null"...)
			}
			return append(b, `,"matched_stop":null}],"usage":null}`...)
		}
		b = append(a.choice(b, s), `"delta":{"role":null,"content":"`...)
		b = a.text(b, s.produced-1, s.produced)
		b = a.logs(append(b, `"},"logprobs":`...), s.produced-1, s.produced)
		return append(b, `,"finish_reason":null,"matched_stop":null}],"usage":null}`...)
	})
	if err == nil && s.produced == s.out && a.req.api == chat {
		err = a.last(s)
	}
	return err
}

// last sends the event that carries only the finish reason.
func (a *writer) last(s *sequence) error {
	return a.o.event(func(b []byte) []byte {
		switch a.req.api {
		case generate:
			return a.generated(b, s, true)
		case completions:
			b = append(a.choice(b, s), `"text":"","logprobs":null,"finish_reason":"`...)
		default:
			b = append(a.choice(b, s), `"delta":{},"logprobs":null,"finish_reason":"`...)
		}
		return append(append(b, s.finish...), `","matched_stop":null}],"usage":null}`...)
	})
}

// choice appends the head of an OpenAI object up to its first choice's index.
func (a *writer) choice(b []byte, s *sequence) []byte {
	b = append(append(b, a.head...), `{"index":`...)
	return append(strconv.AppendInt(b, int64(s.index), 10), ',')
}

func (a *writer) usage(b []byte, seqs []*sequence) []byte {
	prompt, out := 0, 0
	for i, s := range seqs {
		if i%a.req.n == 0 {
			prompt += s.prompt
		}
		out += s.produced
	}
	b = fmt.Appendf(b, `"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,"prompt_tokens_details":`, prompt, prompt+out, out)
	if cached := cachedOf(seqs, a.req.n); cached > 0 && a.w.opt.CacheReport {
		b = cacheDetails(b, cached)
	} else {
		b = append(b, "null"...)
	}
	return append(b, `,"reasoning_tokens":0}`...)
}

func (a *writer) usageEvent(b []byte, seqs []*sequence) []byte {
	b = append(append(b, a.head...), "],"...)
	return append(a.usage(b, seqs), '}')
}

// whole writes an answer that is not streamed.
func (a *writer) whole(seqs []*sequence) error {
	var b []byte
	if a.req.api == generate {
		batch := a.req.batched || a.req.n > 1
		if batch {
			b = append(b, '[')
		}
		for i, s := range seqs {
			if i > 0 {
				b = append(b, ',')
			}
			b = a.generated(b, s, true)
		}
		if batch {
			b = append(b, ']')
		}
		return a.o.json(http.StatusOK, b)
	}
	b = append(b, a.head...)
	for i, s := range seqs {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"index":`...)
		b = strconv.AppendInt(b, int64(s.index), 10)
		if a.req.api == chat {
			b = append(b, `,"message":{"role":"assistant","content":"`...)
			b = append(a.text(b, 0, s.produced), `","reasoning_content":null,"tool_calls":null}`...)
		} else {
			b = append(b, `,"text":"`...)
			b = append(a.text(b, 0, s.produced), '"')
		}
		b = append(a.logs(append(b, `,"logprobs":`...), 0, s.produced), `,"finish_reason":"`...)
		b = append(append(b, s.finish...), `","matched_stop":null}`...)
	}
	b = append(b, "],"...)
	b = append(a.usage(b, seqs), `,"metadata":{"weight_version":"default"}}`...)
	return a.o.json(http.StatusOK, b)
}

// generated appends one object of the native route: the text so far, all of it.
func (a *writer) generated(b []byte, s *sequence, over bool) []byte {
	b = append(b, `{"text":"`...)
	b = append(a.text(b, 0, s.produced), `","output_ids":[`...)
	for k := range s.produced {
		if k > 0 {
			b = append(b, ',')
		}
		b = strconv.AppendInt(b, int64(k+1), 10)
	}
	b = append(b, `],"meta_info":{"id":`...)
	id := a.req.rid
	if a.req.batched || a.req.n > 1 {
		id += "-" + strconv.Itoa(s.index)
	}
	b = append(appendQuoted(b, id), `,"finish_reason":`...)
	switch {
	case !over:
		b = append(b, "null"...)
	case s.finish == "length":
		b = fmt.Appendf(b, `{"type":"length","length":%d}`, s.produced)
	case s.finish == "abort":
		b = append(b, `{"type":"abort","message":"Aborted"}`...)
	default:
		b = append(b, `{"type":"stop","matched":2}`...)
	}
	b = fmt.Appendf(b, `,"prompt_tokens":%d,"completion_tokens":%d,"cached_tokens":%d,"weight_version":"default","num_retractions":0,"dp_rank":%d`,
		s.prompt, s.produced, s.cached, s.rank)
	if a.req.logprob {
		b = a.logprobs(b, s)
	}
	if over {
		b = fmt.Appendf(b, `,"e2e_latency":%.6f`, time.Since(a.started).Seconds())
	}
	b = append(b, '}')
	if a.o.stream && (a.req.batched || a.req.n > 1) {
		b = fmt.Appendf(b, `,"index":%d`, s.index)
	}
	return append(b, '}')
}

// maxLogprobs bounds the input list, whatever the prompt.
const maxLogprobs = 4096

// logprobs appends the two lists. The values of the input list differ by role, so
// that a test can check a merged list: prefill's entries are -1.0 with ids that count
// up from 0, decode's list is one entry of -2.0.
func (a *writer) logprobs(b []byte, s *sequence) []byte {
	b = append(b, `,"input_token_logprobs":[`...)
	switch a.w.role {
	case Decode:
		b = append(b, `[-2.0,0,null]`...)
	default:
		for k := range min(s.prompt, maxLogprobs) {
			if k > 0 {
				b = append(b, ',')
			}
			b = fmt.Appendf(b, `[-1.0,%d,null]`, k)
		}
	}
	b = append(b, `],"output_token_logprobs":[`...)
	for k := range s.produced {
		if k > 0 {
			b = append(b, ',')
		}
		b = fmt.Appendf(b, `[-0.5,%d,null]`, k+1)
	}
	return fmt.Appendf(b, `],"output_token_logprobs_length":%d`, s.produced)
}

// scripted writes the fault's own events.
func (a *writer) scripted() error {
	a.o.mu.Lock()
	for _, e := range a.o.fault.Events {
		if err := a.o.rawEventLocked([]byte(e)); err != nil {
			a.o.mu.Unlock()
			return err
		}
	}
	err := a.o.applyFault(AtEnd)
	a.o.mu.Unlock()
	a.o.quiet()
	return err
}
