package engine

import (
	"context"
	"errors"

	"github.com/sluice-router/sluice/internal/generate"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Dialect is one engine: what it wants of a request's legs, how they are called, what
// its answers mean, how its workers are probed, and which of them can be paired. Its
// methods are safe for concurrent use.
type Dialect interface {
	Prober
	Pairer

	// Name is the worker's setting "backend".
	Name() string
	// Speaks tells whether engines of the dialect are spoken to at URLs of a scheme: "http",
	// "https", "grpc" or "grpcs".
	Speaks(scheme string) bool

	// Native tells whether a pair of the engine's workers takes requests of the
	// route. Those that it does not take are translated into chat.
	Native(route openai.Route) bool
	// FansOut tells whether a request for several samples becomes as many pairs of
	// legs. Otherwise one pair, or decode alone, takes the request as it is.
	FansOut() bool
	// DecodesWhole tells whether a decode worker can run a whole request, without a
	// prefill leg.
	DecodesWhole() bool

	// Plan plans the legs of one request on the two ranks of p, which keeps what the
	// plan needs: it must stay where it is, unchanged, while the plan is used. An
	// error is a fact that the prefill worker does not tell, in words for clients
	// that follow its name.
	Plan(p *Pair) (Plan, error)
	// EditWhole edits the body of a request that runs whole on one rank.
	EditWhole(s *openai.Splicer, w Whole)
	// RankHeader is the name of the header that tells the engine which of its
	// data-parallel ranks runs a leg; empty where the body says it.
	RankHeader() string

	// TakesTokens tells whether the engine takes token ids and gives token ids, so that
	// calls need Request.Generate.
	TakesTokens() bool
	TextSource
	// Call sends one leg's request and returns when the head of the answer is there.
	// Its contract, errors included, is that of [upstream.Endpoint.Do]; the answer's
	// form is that of the API, whatever the engine itself speaks.
	Call(ctx context.Context, to *upstream.Endpoint, req *Request) (*upstream.Response, error)

	// TransferFailure tells whether an answer with an error reports that the
	// hand-off between the legs broke. Either side may be the one to say so, and
	// neither is proved guilty by it. body may be cut short.
	TransferFailure(status int, body []byte) bool
	// RankMissing tells whether an answer with an error reports that the server does not
	// have the data-parallel rank that it was asked for: another process, with fewer, may
	// have taken its place. body may be cut short.
	RankMissing(status int, body []byte) bool
	// HandOffLost tells whether this status of a decode leg means that it could not
	// fetch what prefill had handed over.
	HandOffLost(status int) bool
	// ErrorStatus is the HTTP status, 400 to 599, that an error told with status 200
	// stands for. data is its JSON and may be cut short.
	ErrorStatus(data []byte) int
	// Abort is the error that an abort told in an answer of status 200 stands for.
	Abort(a openai.Abort) (status int, message string)
}

// Rank is what a plan asks of one of its two ranks.
type Rank interface {
	// DPRank is the data-parallel rank, -1 where the worker is scheduled as a whole
	// and places the request itself; DPSize is how many it has.
	DPRank() int
	DPSize() int
	// Bootstrap is where the legs of a pair meet at a prefill worker: its host
	// without scheme, an IPv6 address in brackets (engines join it with the port as
	// it is), and the port. Without a port hasPort is false.
	Bootstrap() (host string, port int, hasPort bool)
	// Connector is how the worker hands KV cache over; empty for dialects without
	// Connectors.
	Connector() string
	// Peer is what decode must be told of a prefill worker, as Pairer has read it; nil
	// while it is not known.
	Peer() Peer
}

// Pair is one request for two ranks, and the state of its plan. It is owned by the
// caller, so that a plan costs no allocation.
type Pair struct {
	// Request is the body before it is edited.
	Request *openai.Peeked
	// RequestID is the id that engines are to see in the header X-Request-Id.
	RequestID string
	// Attempt counts the attempts of the client's request, from 1.
	Attempt         int
	Prefill, Decode Rank
	// Rooms mints rooms, NewID ids that nobody else has: clients and gateways repeat
	// theirs.
	Rooms *Rooms
	NewID func() string

	// of the plan
	rooms      []int64
	room       [1]int64 // behind rooms, for one
	transferID string
	answerID   string // what the client's answer calls the request, for engines that take tokens
	connector  *connector
	engineID   string    // of the prefill rank, with Mooncake
	pushPeer   *PushPeer // of the prefill rank, with NIXL that pushes
}

// Leg is which of the calls of a request a call is.
type Leg uint8

// The kinds of calls.
const (
	LegWhole Leg = iota // the request runs whole on one rank
	LegPrefill
	LegDecode
)

// Request is one call: as HTTP carries it, and in tokens.
type Request struct {
	upstream.Request
	// Generate is the request in tokens, for dialects that take them; nil for calls that
	// generate nothing. The call only reads it.
	Generate *generate.Request
	Leg      Leg
	// HandOff is what Legs.HandOff returned, for the decode leg of a plan of the shape
	// PrefillFirst; nil where decode computes the prompt itself.
	HandOff []byte
	// Legs are those of the plan that the leg is of, which may say more than HandOff; nil
	// with LegWhole.
	Legs Legs
	// ID is what the engine calls the request, Rank the data-parallel rank that is to run it,
	// -1 where the engine is left to choose.
	ID   string
	Rank int
}

// Whole is one request that runs whole on one rank.
type Whole struct {
	Request *openai.Peeked
	Attempt int
	Rank    Rank
}

// Shape is how the two legs of a request follow each other.
type Shape int

const (
	// Together sends both legs at once.
	Together Shape = iota
	// PrefillFirst sends decode when prefill has answered, with what that hands over.
	PrefillFirst
	// DecodeAlone lets decode compute the prompt itself; prefill is not asked.
	DecodeAlone
)

// Alone is why decode computes the prompt itself.
type Alone int

const (
	// AloneSamples is a request for more than one sequence: the KV cache of one can be
	// handed over, once.
	AloneSamples Alone = iota
	// AloneNoConnector is a prefill engine that has nothing to hand over.
	AloneNoConnector
)

// Plan is what becomes of one request on two ranks.
type Plan struct {
	Shape Shape
	// Why is set with DecodeAlone.
	Why Alone
	// RequestID is what both engines call the request.
	RequestID string
	// SameBody: both legs are sent the same bytes, those of EditPrefill.
	SameBody bool
	// RankHeader is the header by which each leg names the data-parallel rank that is to
	// run it, where the dialect has one; PrefillRank and DecodeRank are what it says, -1
	// where the engine is left to choose.
	RankHeader              string
	PrefillRank, DecodeRank int
	Legs                    Legs
}

// Legs edits the legs of a plan and reads what prefill answers.
type Legs interface {
	// EditPrefill edits the body of the prefill leg.
	EditPrefill(s *openai.Splicer)
	// EditDecode edits the body of the decode leg. handOff is what HandOff returned;
	// nil in other shapes than PrefillFirst.
	EditDecode(s *openai.Splicer, handOff []byte)
	// HandOff reads what the answer of a prefill leg that went first hands over, as
	// it is written: a part of answer. It is nil, without an error, where the engines
	// move the KV cache by themselves. The error wraps ErrNoHandOff or ErrBadHandOff. With
	// ErrNoHandOff it may be what is handed over for some sequences of the request.
	HandOff(answer []byte) ([]byte, error)
	// Dispensable tells whether a prefill leg of this plan that was answered with the
	// status may be left out: its edits, and not the request, may be what the engine
	// refused.
	Dispensable(status int) bool
	// Release gives back what the plan has taken from Pair.Rooms. It is called once,
	// when the prefill leg is over; EditDecode may follow in the shape PrefillFirst.
	Release()
}

// Errors of Legs.HandOff.
var (
	// ErrNoHandOff: nothing is handed over. The prompt may be too short for a block,
	// or the engine has no connector: decode can compute it all, and must be counted
	// as doing so.
	ErrNoHandOff = errors.New("the prefill's answer hands nothing over")
	// ErrBadHandOff: what is handed over cannot be used: decode would hang on it.
	ErrBadHandOff = errors.New("what the prefill's answer hands over cannot be used")
)
