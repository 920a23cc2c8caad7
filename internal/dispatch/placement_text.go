package dispatch

import (
	"context"
	"errors"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/tokenizer/queue"
)

// findText finds out how the text of the pool's model becomes tokens, and refuses what
// engines that take tokens have no route for.
func (x *placement) findText() *failure {
	if x.d.opts.Texts == nil {
		return nil
	}
	x.plan.text = x.d.opts.Texts(x.plan.pool)
	if !x.plan.text.TakesTokens {
		return nil
	}
	switch x.call.Route {
	case openai.RouteChatCompletions, openai.RouteCompletions, openai.RouteMessages, openai.RouteResponses, openai.RouteEmbeddings:
	case openai.RouteTokenize, openai.RouteDetokenize, openai.RouteCountTokens:
		x.plan.answersHere = true
	case openai.RouteStoredResponse:
		return &failure{reason: reasonBadRequest, local: noStoredResponse("engines that speak gRPC store none")}
	default:
		e := openai.RouteNotFound(x.pattern())
		e.Message += ": the engines of this model speak gRPC, which has nothing like it"
		return &failure{reason: reasonNoRoute, local: e}
	}
	return nil
}

// readTokens makes tokens of the request's text: all of the request for engines that take
// tokens; for others the prompts, which are then counted instead of estimated.
func (x *placement) readTokens() *failure {
	switch text := &x.plan.text; {
	case x.plan.generate != nil || x.plan.counted != nil && !text.TakesTokens: // the request is placed again
		return nil
	case text.TakesTokens && text.Reader == nil:
		return x.withoutText()
	case text.TakesTokens:
		return x.readRequest()
	case text.Reader != nil && !x.call.Passing && x.d.cfg.Text.CountPrompts != config.CountNever:
		return x.countPrompts()
	}
	return nil
}

// readOwnTokens is readTokens for requests that are not translated.
func (x *placement) readOwnTokens() *failure {
	if x.translatable() {
		return nil
	}
	return x.readTokens()
}

// readRequest makes the request in tokens. The client waits for that as it waits for ranks.
func (x *placement) readRequest() *failure {
	body, read := x.measuredBody(), x.plan.text.Reader.Read
	if f := x.encode(func(ctx context.Context) (err error) {
		x.plan.generate, err = read(ctx, body, x.plan.model, x.turn)
		return err
	}); f != nil {
		return f
	}
	return x.holdIDs()
}

// countPrompts makes the token ids of the prompts. If that fails they are estimated, unless
// the request has ended.
func (x *placement) countPrompts() *failure {
	body, count := x.measuredBody(), x.plan.text.Reader.Count
	if body.Route != openai.RouteChatCompletions && body.Route != openai.RouteCompletions || body.PromptKind.TokenIDs() || body.MediaParts > 0 {
		return nil
	}
	f := x.encode(func(ctx context.Context) (err error) {
		x.plan.counted, err = count(ctx, body, x.turn)
		return err
	})
	if f == nil {
		f = x.holdIDs()
	}
	if f == nil {
		return nil
	}
	x.plan.counted = nil
	if x.ctx.ended() != nil || errors.Is(f.err, errPatience) {
		return f
	}
	x.d.metrics.text.uncounted(f)
	return nil
}

// smallText is a body whose text does not wait for others, in bytes: it takes less time than
// they would need to be ordered fairly.
const smallText = 4 << 10

var errPatience = errors.New("the client's patience is over")

// turn is that of the request's client, which waits for it as long as it lets its request
// wait for ranks.
func (x *request) turn(ctx context.Context, bytes int, work func(ctx context.Context) error) error {
	if bytes <= smallText || x.d.opts.TextQueue == nil {
		return work(ctx)
	}
	wait := ctx
	if patience, limited := x.d.classes.MaxQueueOf(x.call.Header); limited {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeoutCause(ctx, max(patience, leastWait), errPatience)
		defer cancel()
	}
	return x.d.opts.TextQueue.Do(wait, x.call.Client, bytes, func(context.Context) error { return work(ctx) })
}

// leastWait is how long a client waits for the turn of its text that does not wait at all: it
// comes at once if nobody else has text.
const leastWait = time.Millisecond

// encode makes tokens of the request's text with read. The time belongs to what the client
// lets its request wait.
func (x *request) encode(read func(ctx context.Context) error) *failure {
	began := mono.Now()
	err := read(&x.ctx)
	took := mono.Now().Sub(began)
	x.call.Record.Encoded += took
	if err == nil {
		x.d.metrics.text.encoded(took)
		return nil
	}
	return x.encodingFailure(err)
}

// encodingFailure is why no tokens were made of a text.
func (x *request) encodingFailure(err error) *failure {
	if cause := x.ctx.ended(); cause != nil {
		return x.clientEnd(cause)
	}
	if errors.Is(err, errPatience) {
		patience, _ := x.d.classes.MaxQueueOf(x.call.Header)
		info := openai.AdmissionInfo{Gate: "text", Resource: "text", Retryable: true}
		return &failure{reason: reasonDeadline, err: err,
			local: openai.QueueDeadlineExceeded(patience, info, time.Second, x.d.cfg.Admission.OverloadStatus)}
	}
	if errors.Is(err, queue.ErrFull) {
		return &failure{reason: reasonBufferFull, err: err, local: openai.TextQueueFull(x.d.cfg.Text.QueueMemory)}
	}
	f := &failure{reason: reasonBadRequest, err: err}
	if !errors.As(err, &f.local) {
		f.reason, f.local = reasonInternal, openai.Internal(err)
	} else if f.local.Status >= 500 {
		f.reason = reasonUpstream // the renderer
	}
	return f
}

// dropCounted lets go of the ids of prompts that are not sent: they were booked and hashed.
func (x *request) dropCounted() {
	if x.plan.counted == nil {
		return
	}
	if n := 4 * lengths(x.plan.counted); n > freeAnswer && x.call.Memory != nil {
		x.call.Memory.ReleaseMemory(int(n))
		x.answers.Add(-n)
	}
	x.plan.counted = nil
}

// holdIDs counts the memory of the token ids, which are kept as long as the request lasts.
func (x *request) holdIDs() *failure {
	n := int(4 * lengths(x.plan.prompts()))
	if n <= freeAnswer || x.call.Memory == nil {
		return nil
	}
	if !x.call.Memory.ReserveMemory(n) {
		return &failure{reason: reasonBufferFull, local: openai.BufferFull(x.d.cfg.Server.MaxBufferedBytes)}
	}
	x.answers.Add(int64(n))
	return nil
}

// withoutText is the failure of a request for engines that take tokens while the files of
// their model are not here. It waits as for a worker: without them none is ready.
func (x *placement) withoutText() *failure {
	f := x.serving().noWorkers()
	why := x.plan.text.Missing
	if why == "" {
		why = "the tokenizer of the model is not read yet"
	}
	f.local.Message += "; " + why
	return f
}
