package dispatch

import (
	"fmt"
	"net/http"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/translate"
)

// request is what all parts of dispatch know of one client request: what it asks, the
// plan that placement made of it, its place at the gate, and the way to its client. It
// counts who still needs it.
type request struct {
	// immutable
	d    *services
	call *Call
	w    http.ResponseWriter

	ctx requestContext

	// owned by the handler's goroutine
	ticket admission.Ticket
	plan   plan
	// response is what a stream of the Responses API that passes as it is began with.
	response   *translate.BegunResponse
	prompt     tokens.Prompt
	estimate   int64         // of the prompt's tokens, without copies
	began      time.Duration // from the arrival to the start of the last attempt
	expected   int64         // the most output tokens of a leg, where growth is tracked
	output     int64         // tokens of the answer so far, where it is followed
	attempts   int
	failed     int // of them, by an engine's doing
	files      int // that are counted for its legs, until nobody has a share of it
	extensions extensions
	// keys are those of the prompt; nil: it is not looked up.
	keys *promptKeys
	// cachedTold is one more than the tokens of the prompt that the prefill leg reported to
	// have had in its cache; 0: it did not.
	cachedTold int64
	// translates: the present attempt is at engines that are sent plan.translated. Placement
	// cannot decide it: some workers of a model may speak the client's API, and only the
	// grant names those of an attempt.
	translates bool
	// bodyFreed: the handler has let go of the body.
	bodyFreed bool
	verdicts  verdicts
	out       clientWriter
	// values are those of the answer's header; like that, guarded by out.mu while
	// keep-alives may be written.
	values headerValues

	// refs counts who may still use the ticket, bodyRefs who may still send the
	// body: the handler and, if there is one, a prefill leg.
	refs, bodyRefs atomic.Int32
	// answers is the memory of answers that is counted, in bytes.
	answers atomic.Int64
	// bodies are those of all attempts so far: a list that grows in the handler
	// and is given back by the last who lets go of the body.
	bodies *legBodies
}

// plan is how a request is served, as placement decides it once: by two ranks or one,
// as it is or as a chat request, in how many calls, with a place at the gate or without.
type plan struct {
	// pair: prefill and decode are apart.
	pair bool
	pool string // of the gate: the model asked for
	// model is what engines are sent in place of the client's name for the model, which
	// is an alias; empty for other names.
	model string
	fan   openai.Fan
	// fanFault is why engines that want a call for each sample cannot serve the
	// request; others may.
	fanFault *failure
	// generate is the request in tokens, for engines that take them; nil: none does.
	generate *generate.Request
	// counted are the token ids of the prompts of a request that is not sent in tokens, where
	// they were counted here; nil: they were not.
	counted [][]uint32
	// translated is set where some engine is sent chat instead of the client's API.
	translated *translation
	// translationFault is why the client's request cannot be made into chat, whatever
	// the state of this router.
	translationFault *failure
	ungated          *ungated // set for requests that need no admission
	// text is how the pool's text becomes tokens; zero: it does not here.
	text Text
	// answersHere: no engine is needed.
	answersHere bool
}

// prompts are the token ids of the request's prompts; nil where they are not known here.
func (p *plan) prompts() [][]uint32 {
	if p.generate != nil {
		return p.generate.Prompts
	}
	return p.counted
}

// countedPrompt are the token ids of the first prompt that is text.
type countedPrompt struct {
	ids []uint32 // nil: they are not known
	// sent: engines are sent these ids, so that they have no others for the text.
	sent bool
}

func (p *plan) firstPrompt() countedPrompt {
	if all := p.prompts(); len(all) > 0 {
		return countedPrompt{ids: all[0], sent: p.generate != nil}
	}
	return countedPrompt{}
}

// retain takes a share of the request for a prefill leg.
func (x *request) retain() {
	x.refs.Add(1)
	x.bodyRefs.Add(1)
}

// release gives the prefill leg's share back.
func (x *request) release() {
	x.unrefBody()
	x.unref()
}

// leave gives the handler's share back.
func (x *request) leave() {
	x.ctx.stop()
	x.freeBody()
	x.unref()
}

// unref lets go of the ticket; the last one closes it.
func (x *request) unref() {
	if x.refs.Add(-1) == 0 {
		if x.files > 0 {
			x.call.Files.GiveFiles(x.files)
		}
		if n := x.answers.Load(); n > 0 {
			x.call.Memory.ReleaseMemory(int(n))
		}
		x.ticket.Close()
		x.keys.release()
	}
}

func (x *request) unrefBody() {
	if x.bodyRefs.Add(-1) > 0 {
		return
	}
	x.freeBodies()
	x.freeTranslation()
	if x.call.Free != nil {
		x.call.Free()
	}
}

// freeBody lets go of the body, so that a long answer does not hold the prompt.
// The handler calls it as soon as no attempt can follow; after that it must not
// look at Call.Peeked.
func (x *request) freeBody() {
	if !x.bodyFreed {
		x.bodyFreed = true
		x.unrefBody()
	}
}

// reserveCopy takes memory for a copy of the body into account.
func (x *request) reserveCopy(bytes int) *failure {
	if x.call.Reserve == nil {
		return nil
	}
	if full := x.call.Reserve(bytes); full != nil {
		return &failure{reason: reasonBufferFull, local: full}
	}
	return nil
}

// freeBodies gives all bodies of the request back. Nobody may send them any more.
func (x *request) freeBodies() {
	for b := x.bodies; b != nil; {
		next := b.next
		b.prefill, b.decode, b.next = nil, nil, nil
		b.requests = [2]engine.Request{}
		b.pair, b.plan, b.handOff, b.tokens = engine.Pair{}, engine.Plan{}, nil, false
		clear(b.header)
		clear(b.rankHeaders[0])
		clear(b.rankHeaders[1])
		for i := range b.splicers {
			b.splicers[i].Reset(nil)
		}
		legBodiesPool.Put(b)
		b = next
	}
	x.bodies = nil
}

// freeTranslation gives the chat body up. It is called by the last who lets go of
// the client's body.
func (x *request) freeTranslation() {
	if t := x.plan.translated; t != nil && t.peeked != nil {
		t.peeked.Release()
		t.peeked = nil
	}
}

// method is what the engine is asked with.
func (x *request) method() string {
	if x.call.Method == "" {
		return http.MethodPost
	}
	return x.call.Method
}

// path is the engine's path and query.
func (x *request) path() string {
	if x.translates {
		return pathChat // the query belongs to the API that is translated
	}
	return x.call.Path
}

// pattern names the route.
func (x *request) pattern() string {
	if x.call.Pattern != "" {
		return x.call.Pattern
	}
	path, _, _ := strings.Cut(x.call.Path, "?")
	return path
}

// pinned is the worker that the client asks for, "" for none.
func (x *request) pinned() string {
	want := x.call.Header.Get(HeaderTargetWorker)
	if want == "" && !x.d.cfg.Fleet.PDDisaggregation {
		want = x.call.Header.Get(HeaderTargetDecode)
	}
	return want
}

// legBody is the body that the legs of the present attempt are sent.
func (x *request) legBody() *openai.Peeked {
	if x.translates {
		return x.plan.translated.peeked
	}
	return x.call.Peeked
}

// wantsLogprobs tells whether the client's answer needs the prefill's too.
func (x *request) wantsLogprobs() bool {
	return x.call.Route == openai.RouteGenerate && x.call.Peeked.ReturnLogprob
}

func (x *request) legName(leg admission.Leg) string {
	if !x.plan.pair {
		return ""
	}
	return leg.String()
}

// logPanic must be called by the deferred function that recovered p.
func (x *request) logPanic(where string, p any) {
	x.d.log.Error("panic while handling a request", "request_id", x.call.ID, "in", where,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
