package engine

import (
	"github.com/sluice-router/sluice/internal/openai"
)

// SGLang pairs the legs of a request by a room.
type SGLang struct{ HTTP }

// Name implements Dialect.
func (SGLang) Name() string { return "sglang" }

// Native implements Dialect. The engine's own routes for the Messages and the
// Responses API drop the fields by which the legs meet (llm-d/llm-d-router#2006).
func (SGLang) Native(route openai.Route) bool {
	return route != openai.RouteMessages && route != openai.RouteResponses
}

// FansOut implements Dialect: a room is good for one sample of one prompt.
func (SGLang) FansOut() bool { return true }

// DecodesWhole implements Dialect: decode servers refuse requests without a room.
func (SGLang) DecodesWhole() bool { return false }

// EditWhole implements Dialect: the body says which rank runs the request.
func (d SGLang) EditWhole(s *openai.Splicer, w Whole) {
	d.HTTP.EditWhole(s, w)
	if r := w.Rank.DPRank(); r >= 0 {
		s.SetInt(openai.FieldRoutedDPRank, int64(r))
	}
}

// Plan implements Dialect. It takes a room for each prompt.
func (SGLang) Plan(p *Pair) (Plan, error) {
	p.rooms = p.room[:0]
	for range p.Request.BatchSize {
		p.rooms = append(p.rooms, p.Rooms.Mint(max(p.Prefill.DPRank(), 0), p.Prefill.DPSize()))
	}
	return Plan{
		Shape: Together, RequestID: p.RequestID,
		SameBody: p.Prefill.DPRank() < 0 && p.Decode.DPRank() < 0,
		Legs:     (*sglangLegs)(p),
	}, nil
}

// sglangLegs are the legs of a pair that meet by a room.
type sglangLegs Pair

// EditPrefill implements Legs: routed_dp_rank says which of the receiving server's
// ranks runs the leg.
func (l *sglangLegs) EditPrefill(s *openai.Splicer) {
	l.edit(s)
	if r := l.Prefill.DPRank(); r >= 0 {
		s.SetInt(openai.FieldRoutedDPRank, int64(r))
	}
}

// EditDecode implements Legs: disagg_prefill_dp_rank says which rank of the other
// server ran the prefill.
func (l *sglangLegs) EditDecode(s *openai.Splicer, _ []byte) {
	l.edit(s)
	if r := l.Decode.DPRank(); r >= 0 {
		s.SetInt(openai.FieldRoutedDPRank, int64(r))
	}
	if r := l.Prefill.DPRank(); r >= 0 {
		s.SetInt(openai.FieldDisaggPrefillDPRank, int64(r))
	}
}

// edit adds the fields by which the legs meet (server fields of GenerateReqInput and
// of the OpenAI routes). A batch gets lists as long as the batch, one room a prompt:
// a scalar room would be expanded by the engine to room, room+1, … and so take rooms
// nobody minted.
func (l *sglangLegs) edit(s *openai.Splicer) {
	markRID(s, l.Request, l.Attempt)
	host, port, hasPort := l.Prefill.Bootstrap()
	if !l.Request.IsBatch {
		s.SetString(openai.FieldBootstrapHost, host)
		if hasPort {
			s.SetInt(openai.FieldBootstrapPort, int64(port))
		} else {
			s.SetNull(openai.FieldBootstrapPort)
		}
		s.SetInt(openai.FieldBootstrapRoom, l.rooms[0])
		return
	}
	n := len(l.rooms)
	s.SetStringTimes(openai.FieldBootstrapHost, host, n)
	if hasPort {
		s.SetIntTimes(openai.FieldBootstrapPort, int64(port), n)
	} else {
		s.SetNullTimes(openai.FieldBootstrapPort, n)
	}
	s.SetInts(openai.FieldBootstrapRoom, l.rooms)
}

// HandOff implements Legs: the engines meet by themselves.
func (*sglangLegs) HandOff([]byte) ([]byte, error) { return nil, ErrNoHandOff }

// Dispensable implements Legs.
func (*sglangLegs) Dispensable(int) bool { return false }

// Release implements Legs.
func (l *sglangLegs) Release() {
	for _, r := range l.rooms {
		l.Rooms.Free(r)
	}
	l.rooms = nil
}
