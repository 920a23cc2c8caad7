package replay

import (
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/heap"
	"github.com/sluice-router/sluice/internal/kv"
)

// call is one request of a replay.
type call struct {
	ticket  admission.Ticket
	request *Request
	number  int // in the trace, from 0
	router  *router

	came             time.Duration
	granted          time.Duration
	first, done      time.Duration // the first token, and the last one
	prefill, decode  *engine       // prefill is the only one of an aggregated request
	cached, believed int64         // tokens that the engine had, and that the router credited it with
	refused          bool
	counted          bool // among those whose prompts begin alike

	until  float64 // the step of its last token
	blocks int     // reserved where it decodes
	place  int     // in the engine's heap
}

// Before is the order of heap.Element: by end, then by number.
func (c *call) Before(o *call) bool {
	return c.until < o.until || c.until == o.until && c.number < o.number
}

// SetIndex is part of heap.Element.
func (c *call) SetIndex(i int) { c.place = i }

// eventKind is what happens.
type eventKind uint8

const (
	prefilled eventKind = iota // by engine: its prompt
	decoded                    // by engine: a request may be over
	deadline                   // of router: time has to be told
)

// event is something that happens at a time.
type event struct {
	kind    eventKind
	at      time.Duration
	seq     uint64
	engine  *engine
	router  *router
	version int
}

// before orders events by time, and those of one time as they were made.
func (e *event) before(o *event) bool { return e.at < o.at || e.at == o.at && e.seq < o.seq }

type queued struct{ event }

// Before is part of heap.Element.
func (q *queued) Before(o *queued) bool { return q.before(&o.event) }

// SetIndex is part of heap.Element.
func (*queued) SetIndex(int) {}

// sim runs one arm.
type sim struct {
	trace *Trace
	opts  *Options
	arm   *arm

	now    time.Duration
	seq    uint64
	events heap.Heap[*queued]
	spare  []*queued

	routers  []*router
	prefills []*engine
	decodes  []*engine
	exact    *exactFeed // nil: no events
	calls    []*call
	over     []*call // memory
}

func newSim(t *Trace, o *Options, a *arm) (*sim, error) {
	s := &sim{trace: t, opts: o, arm: a}
	for i := range o.Workers {
		e := &engine{sim: s, number: i, cache: newCache(o.CacheBlocks), name: a.workerName(o, i)}
		if o.Aggregated && o.decodes() {
			e.blocks = o.CacheBlocks
		}
		s.prefills = append(s.prefills, e)
	}
	if !o.Aggregated {
		for i := range o.DecodeWorkers {
			s.decodes = append(s.decodes, &engine{sim: s, number: i, blocks: o.DecodeBlocks, name: decodeName(i)})
		}
	}
	if a.index == indexExact {
		s.exact = newExactFeed(s)
	}
	for i := range o.Routers {
		r, err := newRouter(s, i)
		if err != nil {
			return nil, err
		}
		s.routers = append(s.routers, r)
	}
	return s, nil
}

// at makes an event happen at a time.
func (s *sim) at(t time.Duration, e event) {
	e.at = t
	s.seq++
	e.seq = s.seq
	var q *queued
	if last := len(s.spare) - 1; last >= 0 {
		q, s.spare = s.spare[last], s.spare[:last]
		q.event = e
	} else {
		q = &queued{e}
	}
	s.events.Push(q)
}

// tell is what the events of an engine say of its cache.
func (s *sim) tell(e *engine, stored, evicted []kv.Key) {
	if s.exact != nil {
		s.exact.tell(e.number, stored, evicted)
	}
}

// run lets all requests come and go.
func (s *sim) run(at []time.Duration, order []int) {
	calls := make([]call, len(order))
	s.calls = make([]*call, len(order))
	for n, i := range order {
		c := &calls[n]
		c.request, c.number, c.came, c.router = &s.trace.Requests[i], n, at[i], s.routers[n%len(s.routers)]
		s.calls[n] = c
	}
	for next := 0; next < len(s.calls) || s.events.Len() > 0; {
		if next < len(s.calls) && (s.events.Len() == 0 || s.calls[next].came < s.events.First().at) {
			s.now = s.calls[next].came
			s.calls[next].router.arrive(s.calls[next])
			next++
			continue
		}
		q := s.events.Pop()
		e := q.event
		s.spare = append(s.spare, q)
		s.now = e.at
		switch e.kind {
		case prefilled:
			s.endPrefill(e.engine)
		case decoded:
			if e.version == e.engine.version {
				s.endDecode(e.engine)
			}
		case deadline:
			e.router.advance(e.at)
		}
	}
}

// start sends a request that was granted to its engine.
func (s *sim) start(c *call) {
	c.granted = s.now
	c.prefill.submit(c)
}

func (s *sim) endPrefill(e *engine) {
	c := e.endPrefill()
	switch {
	case !s.opts.decodes():
		c.first, c.done = s.now, s.now
		c.router.finish(c)
	case s.opts.Aggregated:
		c.first = s.now
		c.router.firstToken(c)
		e.join(c)
	default:
		c.router.handOver(c)
		c.decode.join(c)
	}
	e.begin()
	e.plan()
}

func (s *sim) endDecode(e *engine) {
	s.over = e.endDecode(s.over[:0])
	for _, c := range s.over {
		c.done = s.now
		c.router.finish(c)
	}
	e.admit()
	if s.opts.Aggregated {
		e.begin()
		e.plan()
	}
}
