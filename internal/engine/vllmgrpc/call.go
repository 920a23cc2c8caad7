package vllmgrpc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

const methodGenerate = service + "Generate"

// Call implements engine.Dialect. The head of the answer is there with the first bytes that a
// client can be given, so that what fails before that still has a status of its own.
func (d Dialect) Call(ctx context.Context, to *upstream.Endpoint, req *engine.Request) (*upstream.Response, error) {
	c := &call{ctx: ctx, to: to, own: *req, channel: to.Channel()}
	c.req = &c.own
	switch {
	case c.channel == nil:
		return nil, c.invalid(errors.New("it is not spoken to by gRPC"))
	case req.Generate == nil:
		return told(http.StatusNotImplemented, "engines that are spoken to by gRPC do not have this route"), nil
	}
	c.options = upstream.CallOptions{Header: metadata(req.Header), Limits: req.Limits}
	switch {
	case req.Generate.Route == openai.RouteEmbeddings:
		return c.embed()
	case req.Leg == engine.LegPrefill:
		return c.prefill()
	}
	return c.generate()
}

// call is one leg's request at one engine.
type call struct {
	ctx     context.Context
	to      *upstream.Endpoint
	req     *engine.Request
	own     engine.Request // behind req: the caller uses its own again while the answer is read
	channel upstream.Channel
	options upstream.CallOptions
	// handedOver tells of each sequence whether prefill has handed KV cache over for it.
	handedOver []bool
}

// id is what the engine calls the request, which is this call's alone: clients repeat theirs.
// The ids of the legs of a pair are made with their plan, and are the same for both.
func (c *call) id() string {
	if c.req.Leg == engine.LegWhole {
		return fmt.Sprintf("%s-%016x", c.req.ID, rand.Uint64())
	}
	return c.req.ID
}

// open begins one call of Generate.
func (c *call) open(ctx context.Context, o *one) (upstream.MessageStream, error) {
	buf := messages.Get().(*[]byte)
	defer func() {
		if cap(*buf) <= maxKeptMessage {
			messages.Put(buf)
		}
	}()
	message, err := o.appendMessage((*buf)[:0], c.req)
	if err != nil {
		return nil, c.invalid(err)
	}
	*buf = message // the channel has copied it when Stream returns
	return c.channel.Stream(ctx, methodGenerate, message, c.options)
}

// messages have the memory in which one request after another is encoded, up to maxKeptMessage
// bytes.
var messages = sync.Pool{New: func() any { return new([]byte) }}

const maxKeptMessage = 64 << 10

// calls are those by which the engine is to generate all that is asked for.
func (c *call) calls() ([]one, error) {
	g := c.req.Generate
	n := len(g.Prompts) * g.Samples
	legs, _ := c.req.Legs.(*engine.VLLMTokenLegs)
	id := c.id()
	if legs != nil {
		params, err := legs.DecodeParams(c.req.HandOff, n)
		if err != nil {
			return nil, err
		}
		if some(params) {
			c.handedOver = make([]bool, n)
			list := make([]one, n)
			for k := range list {
				c.handedOver[k] = params[k] != nil
				list[k] = one{id: engine.CallID(id, k), prompt: k / g.Samples, sample: k % g.Samples, samples: 1, params: params[k], streamed: g.Stream}
			}
			return list, nil
		}
	}
	list := make([]one, len(g.Prompts))
	for p := range list {
		list[p] = one{id: engine.CallID(id, p), prompt: p, samples: g.Samples, streamed: g.Stream}
	}
	return list, nil
}

func some(list [][]byte) bool {
	for _, b := range list {
		if b != nil {
			return true
		}
	}
	return false
}

// source opens the calls; their answers are read from it.
func (c *call) source(list []one) (source, error) {
	if len(list) > 1 {
		return newFan(c, list), nil
	}
	s, err := c.open(c.ctx, &list[0])
	if err != nil {
		return nil, err
	}
	return &single{s, &list[0]}, nil
}

// generate runs the request whole, or its decode leg.
func (c *call) generate() (*upstream.Response, error) {
	list, err := c.calls()
	if err != nil {
		return nil, c.invalid(err)
	}
	src, err := c.source(list)
	if err != nil {
		return c.failed(err)
	}
	b := newBody(c, src)
	if err := b.more(); err != nil {
		_ = b.Close()
		return c.failed(err)
	}
	if !c.req.Generate.Stream {
		return upstream.NewResponse(http.StatusOK, jsonHeader, int64(len(b.out)), b), nil
	}
	return upstream.NewResponse(http.StatusOK, streamHeader, -1, b), nil
}

var (
	jsonHeader   = upstream.Header{{Name: "Content-Type", Value: "application/json"}}
	streamHeader = upstream.Header{{Name: "Content-Type", Value: "text/event-stream; charset=utf-8"}}
)

// maxHandOffAge is how old the first of several hand-offs of one request may be when the last is
// there. What is older is left out, and decode computes that sequence itself: the engine keeps
// it for some 30 s, and what is fetched later is wrong text.
const maxHandOffAge = 15 * time.Second

// prefill runs the prefill leg. Its answer has the kv_transfer_params, one for each sequence.
// The first sample of each prompt goes before the others, which then find it in the cache.
// What is counted is that of the first ones: the prompts were computed there.
func (c *call) prefill() (*upstream.Response, error) {
	g := c.req.Generate
	legs, _ := c.req.Legs.(*engine.VLLMTokenLegs)
	id := c.id()
	n := len(g.Prompts) * g.Samples
	p := prefilled{params: make([][]byte, n), at: make([]time.Time, n)}
	for _, first := range []bool{true, false} {
		var list []one
		for k := range n {
			if (k%g.Samples == 0) != first {
				continue
			}
			if !first && (legs == nil || legs.PrefillParams(k) == nil) {
				continue // the engines move the prompt's KV cache by themselves, once for all samples
			}
			o := one{id: engine.CallID(id, k), prompt: k / g.Samples, sample: k % g.Samples, samples: 1}
			if legs != nil {
				o.params = legs.PrefillParams(k)
			}
			list = append(list, o)
		}
		if len(list) > 0 {
			if err := c.prefillAll(list, &p); err != nil {
				return c.failed(err)
			}
		}
	}
	body := p.json()
	return upstream.NewResponse(http.StatusOK, jsonHeader, int64(len(body)), &plainBody{left: body}), nil
}

// prefilled is what the prefills of a request's sequences told.
type prefilled struct {
	params         [][]byte
	at             []time.Time
	done           int // sequences
	prompt, cached int64
}

func (c *call) prefillAll(list []one, p *prefilled) error {
	src, err := c.source(list)
	if err != nil {
		return err
	}
	defer src.close()
	var m message
	done := make(map[*one]bool, len(list))
	for {
		o, raw, err := src.next()
		if err == io.EOF {
			if len(done) < len(list) {
				return c.malformed(errors.New("the engine's answer ended before the sequence did"))
			}
			return nil
		}
		if err == nil {
			if err = m.decode(raw); err != nil {
				err = c.malformed(err)
			}
		}
		if err != nil {
			return err
		}
		var e generate.Event
		if err := m.event(&e, o.prompt, o.sample, false); err != nil {
			return c.malformed(err)
		}
		switch {
		case m.index != 0:
			return c.malformed(fmt.Errorf("the engine told of sequence %d, and was asked for one", m.index))
		case done[o]:
			return c.malformed(errors.New("the engine told the end of a sequence twice"))
		case len(e.IDs) > 1:
			return c.malformed(fmt.Errorf("the engine generated %d tokens, and was asked for one", len(e.IDs)))
		case len(e.IDs) == 1 && uint64(e.IDs[0]) >= uint64(c.req.Generate.Vocab):
			// Its vocabulary is another one: what decode goes on with would be too.
			return c.malformed(fmt.Errorf("the engine told the token id %d; the model has %d", e.IDs[0], c.req.Generate.Vocab))
		case e.Finish == generate.Failed || e.Finish == generate.Aborted:
			return &generate.EngineError{Finish: e.Finish}
		}
		done[o] = true
		k := o.prompt*c.req.Generate.Samples + o.sample
		p.take(k, o.sample == 0, &m)
	}
}

func (p *prefilled) take(k int, first bool, m *message) {
	p.done++
	if first {
		p.prompt += int64(m.prompt)
		p.cached += int64(m.cached)
	}
	p.at[k] = time.Now()
	if m.params != nil {
		p.params[k] = append([]byte{}, m.params...)
	}
}
