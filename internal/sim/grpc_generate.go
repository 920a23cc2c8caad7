package sim

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// grpcAnswer is the answer of one Generate call.
type grpcAnswer struct {
	// Immutable.
	w *Worker
	c *call
	r *grpcRequest

	mu      sync.Mutex // guards the outputs and the order of messages
	outputs []*output
}

// Generate runs the engine.
func (v *vllmService) Generate(m *vllmpb.GenerateRequest, stream grpc.ServerStreamingServer[vllmpb.GenerateResponse]) error {
	return v.w.call(stream.Context(), v.l, vllmpb.VllmEngine_Generate_FullMethodName, m, true,
		func(m proto.Message) error { return stream.Send(m.(*vllmpb.GenerateResponse)) },
		func(c *call) error { return v.w.generate(c, m) })
}

func (w *Worker) generate(c *call, m *vllmpb.GenerateRequest) error {
	r, err := w.parseGRPC(c, m)
	if err != nil {
		return err
	}
	seqs := r.sequences(w, c)
	a := &grpcAnswer{w: w, c: c, r: r}
	for _, s := range seqs {
		o := &output{r: r, s: s}
		a.outputs = append(a.outputs, o)
		s.token = func(k int) uint32 {
			a.mu.Lock()
			defer a.mu.Unlock()
			return o.id(k)
		}
	}
	ctx, cancel := context.WithCancelCause(c.ctx) // ends with an abort too
	defer cancel(nil)
	leave := w.registered(c, m.GetRequestId(), cancel)
	defer leave()
	if c.l.engineDead.Load() {
		return errEngineDead
	}
	err = a.run(ctx)
	external := 0
	for _, s := range seqs {
		external += s.v.external
	}
	w.note(func() { c.rec.External, c.rec.Cached = external, cachedOf(seqs, r.n) })
	return err
}

// run runs the sequences side by side; the first failure ends the others.
func (a *grpcAnswer) run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	errs := make([]error, len(a.outputs))
	one := func(i int) {
		if errs[i] = a.runOne(ctx, a.outputs[i]); errs[i] != nil {
			cancel(errs[i])
		}
	}
	if len(errs) == 1 {
		one(0)
		return errs[0]
	}
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { one(i) })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return context.Cause(ctx)
		}
	}
	return nil
}

func (a *grpcAnswer) runOne(ctx context.Context, o *output) error {
	err := a.w.run(ctx, a.c.l, o.s, func(*sequence) error { return a.token(o) })
	var wire *wireError
	switch {
	case errors.Is(err, errAborted): // no failure: what there is so far is sent
		o.s.finish = "abort"
	case errors.As(err, &wire) && wire.kvLoad: // nor this one, as far as the status goes
		a.w.note(func() { a.c.rec.Error = wire.message + wire.detail })
		o.s.finish, o.s.produced = "error", 0
	case err != nil:
		return err
	}
	return a.complete(o)
}

// token tells of the token that a sequence has just produced.
func (a *grpcAnswer) token(o *output) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if o.produced(); a.c.fault.Finish == "error" {
		o.s.out, o.s.finish = o.s.produced, "error"
		return nil
	}
	if !a.r.GetStream() || o.holds() {
		return nil
	}
	return a.chunkLocked(o, a.c.fault.Kind)
}

// chunkLocked sends the tokens that no chunk has told yet.
func (a *grpcAnswer) chunkLocked(o *output, kind Kind) error {
	ids := o.tokens(o.sent, o.s.produced)
	chunk := &vllmpb.GenerateStreamChunk{TokenIds: ids, PromptTokens: uint32(o.s.prompt), CompletionTokens: uint32(len(ids)),
		CachedTokens: a.cached(o), OutputLogprobs: outputLogprobs(a.r.sampling, ids), Index: uint32(o.s.index)}
	if o.chunks == 0 {
		chunk.InputLogprobs = inputLogprobs(a.r.sampling, a.r.ids)
	}
	o.last, o.sent = len(ids), o.s.produced
	o.chunks++
	m := &vllmpb.GenerateResponse{Response: &vllmpb.GenerateResponse_Chunk{Chunk: chunk}}
	switch kind {
	case BadIndex:
		chunk.Index = uint32(a.r.n)
	case BadIDs:
		for i := range chunk.TokenIds {
			chunk.TokenIds[i] = modelVocabulary + uint32(i)
		}
	case HugeMessage:
		m.ProtoReflect().SetUnknown(filler(a.c.fault.BodySize))
	case Garbage:
		m.ProtoReflect().SetUnknown([]byte{0xff, 0xff, 0xff, 0xff})
	}
	return a.c.message(m)
}

// filler is a field that nobody knows, of n bytes.
func filler(n int) []byte {
	def(&n, 16<<20)
	return protowire.AppendBytes(protowire.AppendTag(nil, 100, protowire.BytesType), make([]byte, n))
}

// cached is how many of the prompt's tokens were found in this engine's own cache: of those
// that came from another one the servicer tells nothing.
func (a *grpcAnswer) cached(o *output) uint32 {
	if o.s.v.external > 0 {
		return 0
	}
	return uint32(o.s.cached)
}

// complete ends a sequence's part of the answer. Streamed, it repeats the last chunk.
func (a *grpcAnswer) complete(o *output) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	f, s, stream := a.c.fault, o.s, a.r.GetStream()
	if f.Finish != "" {
		if s.finish = f.Finish; f.Finish == "error" {
			s.produced = 0
		}
	}
	// Tokens that were held back when it was ended, or a chunk without any.
	if stream && (s.produced > o.sent || s.finish == "error" && o.chunks == 0) {
		if err := a.chunkLocked(o, ""); err != nil {
			return err
		}
	}
	from := 0
	if stream {
		from = max(0, s.produced-o.last)
	}
	ids := o.tokens(from, s.produced)
	done := &vllmpb.GenerateComplete{OutputIds: ids, FinishReason: s.finish, PromptTokens: uint32(s.prompt), CompletionTokens: uint32(len(ids)),
		CachedTokens: a.cached(o), OutputLogprobs: outputLogprobs(a.r.sampling, ids), Index: uint32(s.index)}
	if !stream {
		done.InputLogprobs = inputLogprobs(a.r.sampling, a.r.ids)
	}
	if s.finish == "stop" {
		switch {
		case o.stopStr != "":
			done.MatchedStop = &vllmpb.GenerateComplete_MatchedStopStr{MatchedStopStr: o.stopStr}
		case o.stopped:
			done.MatchedStop = &vllmpb.GenerateComplete_MatchedTokenId{MatchedTokenId: o.stopID}
		}
	}
	if t := s.v.transfer; t != nil {
		params := string(t)
		done.KvTransferParamsJson = &params
	}
	if f.KVParams != "" {
		done.KvTransferParamsJson = &f.KVParams
	}
	o.done = true
	if !stream && (f.does(AtInside) || f.does(AtEvent)) { // the answer is one message
		if err := a.c.act(); err != nil {
			return err
		}
	}
	if err := a.deviate(o, done); err != nil {
		return err
	}
	return a.c.applyFault(AtEnd)
}

// deviate sends the complete as the fault wants it.
func (a *grpcAnswer) deviate(o *output, done *vllmpb.GenerateComplete) error {
	m := &vllmpb.GenerateResponse{Response: &vllmpb.GenerateResponse_Complete{Complete: done}}
	switch stream := a.r.GetStream(); a.c.fault.Kind {
	case NoComplete:
		return nil
	case CompleteTwice:
		if err := a.c.message(m); err != nil {
			return err
		}
	case ChunkAfterComplete:
		if err := a.c.message(m); err != nil {
			return err
		}
		return a.chunkLocked(o, "")
	case BadIndex:
		if !stream {
			done.Index = uint32(a.r.n)
		}
	case BadIDs:
		if !stream && len(done.OutputIds) > 0 {
			done.OutputIds[0] = modelVocabulary
		}
	case HugeMessage:
		if !stream {
			m.ProtoReflect().SetUnknown(filler(a.c.fault.BodySize))
		}
	case Garbage:
		m.ProtoReflect().SetUnknown([]byte{0xff, 0xff, 0xff, 0xff})
	}
	return a.c.message(m)
}
