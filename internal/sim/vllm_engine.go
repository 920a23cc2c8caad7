package sim

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"net/http"
	"strconv"
)

// vsequence is the part of a sequence that only vLLM workers have.
type vsequence struct {
	// Immutable while it runs.
	id     string // the engine's own, with eight random digits at the end
	base   string // the request's, as sent
	prompt prompt
	sample int
	stream bool
	long   bool // asks for more than one token
	many   bool // is one of several sequences
	kv     *transferParams
	client context.Context // of a gRPC call: ends when the client has gone; nil otherwise

	// Owned by the goroutine that runs it.
	seed     uint64 // of the text
	external int    // prompt tokens that came over the connector
	begun    bool   // its first event is sent
	transfer []byte // the kv_transfer_params of the answer, nil: none
}

// newRequestID makes the id of a request that came without one.
func newRequestID() string {
	var b [16]byte
	_, _ = rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// bodyID is the id in the answer.
func (r *vrequest) bodyID() string {
	switch r.api {
	case completions:
		return "cmpl-" + r.base
	case responses:
		return "resp_" + r.response
	}
	return "chatcmpl-" + r.base
}

// vsequences creates the sequences of a request.
func (w *Worker) vsequences(o *responseWriter, r *vrequest, h http.Header) ([]*sequence, error) {
	var rank *int
	if x, err := strconv.Atoi(h.Get("X-Data-Parallel-Rank")); err == nil { // the engine ignores what is no number
		if x < 0 || x >= w.opt.DPSize {
			return nil, invalidf("", "data_parallel_rank %d is out of range [0, %d).", x, w.opt.DPSize)
		}
		rank = &x
	}
	var seqs []*sequence
	for p, c := range r.contents {
		out, finish := w.voutput(o, r, c.tokens)
		if w.pages(c.tokens+out) > w.opt.KVTokens {
			return nil, invalidf("input_tokens", "The request of %d tokens needs more than the KV cache of %d tokens.", c.tokens+out, w.opt.KVTokens)
		}
		for k := range r.n {
			id := r.bodyID()
			switch r.api {
			case completions:
				id += "-" + strconv.Itoa(p)
			case responses:
				id += "_0"
			}
			if r.n > 1 {
				id = strconv.Itoa(k) + "_" + id
			}
			s := &sequence{index: p*r.n + k, prompt: c.tokens, out: out, finish: finish, prefillRank: -1,
				v: &vsequence{id: id + "-" + newRequestID()[:8], base: r.base, prompt: c, sample: k, stream: r.stream,
					long: r.maxTokens != 1, many: len(r.contents)*r.n > 1, kv: r.kv}}
			if w.caches() {
				s.content, s.scope = &s.v.prompt, r.scope
			}
			if rank != nil {
				s.rank = *rank
			} else {
				s.rank = int(w.nextRank.Add(1) % uint64(w.opt.DPSize))
			}
			seqs = append(seqs, s)
		}
	}
	w.note(func() {
		o.rec.RequestID, o.rec.Stream = seqs[0].v.id, r.stream
		o.rec.Rank, o.rec.Prompt = seqs[0].rank, seqs[0].prompt
	})
	return seqs, nil
}

// voutput returns the number of output tokens and the finish reason. Without a limit
// in the request the completions API ends after 16, the others at the context length.
func (w *Worker) voutput(o *responseWriter, r *vrequest, prompt int) (int, string) {
	most := w.opt.ContextLength - prompt // max_tokens may be more, and is cut
	n, finish := min(r.maxTokens, most), "length"
	if n < 0 {
		n, finish = max(w.Timing().OutputTokens, r.min), "stop"
		if n >= most {
			n, finish = most, "length"
		}
		if r.api == completions && n >= 16 {
			n, finish = 16, "length"
		}
	}
	if f := o.fault; len(f.Tokens) > 0 {
		n, finish = len(f.Tokens), "stop"
	} else if f.OutputTokens > 0 && f.OutputTokens < n {
		n, finish = f.OutputTokens, "stop"
	}
	return n, finish
}

// runVLLM takes a sequence through a vLLM engine: it waits for memory, receives KV
// from another engine if there is any, computes the rest of the prompt, produces the
// tokens, and leaves KV for a decode if it was asked to.
func (w *Worker) runVLLM(ctx context.Context, l *lifetime, s *sequence, emit func(*sequence) error) (err error) {
	v := s.v
	v.seed = v.prompt.hash
	t := &transferLeg{w: w, l: l, s: s, at: l.engines[s.rank]}
	defer func() { t.end(err) }()
	w.move(s, queued)
	t.open()
	need := w.pages(s.prompt + s.out)
	if err := l.memory[s.rank].acquire(ctx, need); err != nil {
		return err
	}
	w.hold(s.rank, need)
	kept := 0
	defer func() { w.giveBack(l, s.rank, need-kept) }()
	if err := t.receive(ctx); err != nil {
		return err
	}
	if v.sample > 0 {
		v.seed = mix(v.seed, uint64(v.sample))
	}
	s.cached = v.external // as if it had been cached here
	if s.prompt > v.external {
		w.move(s, queued)
		if err := w.computeTokens(ctx, l, s, v.external); err != nil {
			return err
		}
	} else if !t.wrongKV {
		cachedPrompt{w, l, s, v.external}.received()
	}
	if v.kv != nil && v.kv.remotePrefill && v.kv.hasCached {
		s.cached = v.kv.cached // what the prefill found; here all came from elsewhere
	}
	if w.opt.Connector.shared() && w.opt.KVRole != "kv_consumer" {
		w.fleet.kv.keep(w.opt.Connector, v.prompt.blocks)
	}
	if err := w.decode(ctx, s, emit); err != nil {
		return err
	}
	kept = t.offer()
	return nil
}
