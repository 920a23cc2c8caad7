package openai

import (
	"errors"
	"fmt"
	"math"
)

// DefaultMaxCopies bounds n of a request that is sent as copies; it is the largest n
// of the OpenAI API.
const DefaultMaxCopies = 128

// Fan is how a request for n samples goes to engines that can't pair their legs for
// more than one sample a prompt: as Copies calls for one sample each, whose answers
// become the one the client asked for (Merge, Stream).
//
// SGLang is such an engine: with n > 1 it uses one room for all samples and a warm-up
// request before them (its tokenizer manager's batch handling;
// sgl-project/sglang#26486). A list of prompts is no reason for copies: each copy
// carries the whole list, and the choice of prompt i in copy k is the client's choice
// number i*Copies + k, as the API orders them.
type Fan struct {
	// Copies is the number of calls, at least 1; with 1 nothing is edited and the
	// answer passes as it is.
	Copies int
	// Prompts is the number of prompts in each copy, and so of choices in its
	// answer.
	Prompts int
	// Usage: the client asked for token counts at the end of its stream. The copies
	// are asked for the same, since they carry the client's stream_options.
	Usage bool

	bestOf bool // the client sent best_of = n
	seeded bool
	seed   int64
}

// PlanFan says how to send the request. maxCopies bounds n; 0 is DefaultMaxCopies.
// The error is an *Error with status 400: the request asks for what copies can't give.
func PlanFan(p *Peeked, maxCopies int) (Fan, error) {
	if maxCopies <= 0 {
		maxCopies = DefaultMaxCopies
	}
	f := Fan{Copies: 1, Prompts: p.BatchSize, Usage: p.IncludeUsage}
	if err := f.planBestOf(p); err != nil {
		return Fan{}, err
	}
	if p.N == 1 {
		return f, nil
	}
	switch p.Route {
	case RouteChatCompletions, RouteCompletions:
	case RouteGenerate:
		return Fan{}, InvalidRequest("sampling_params.n", "sampling_params.n is %d; with prefill and decode apart this route gives one sample for each prompt: send the prompt %d times in a list, or use the chat or completions route", p.N, p.N)
	default:
		return Fan{}, InvalidRequest("n", "n is %d; this route gives one sample for each prompt", p.N)
	}
	if p.N > maxCopies {
		return Fan{}, InvalidRequest("n", "n is %d; with prefill and decode apart at most %d are allowed", p.N, maxCopies)
	}
	if p.Given(FieldUseBeamSearch) && string(p.Raw(FieldUseBeamSearch)) != "false" {
		return Fan{}, InvalidRequest("use_beam_search", "beam search over n=%d beams is impossible with prefill and decode apart, where each sample is a call of its own; leave it out or set n to 1", p.N)
	}
	// Engines would confuse n calls with the same id.
	for _, id := range [...]Field{FieldRID, FieldRequestID} {
		if p.Given(id) {
			return Fan{}, InvalidRequest(id.String(), "%s can't be chosen together with n=%d, where each sample is a call of its own; leave it out", id, p.N)
		}
	}
	if p.Given(FieldSeed) {
		if !p.HasSeed {
			return Fan{}, InvalidRequest("seed", "seed is %s; with n=%d it must be a whole number of 64 bits, as each sample gets its own", show(p.FieldKind(FieldSeed), p.Raw(FieldSeed)), p.N)
		}
		f.seeded, f.seed = true, p.Seed
	}
	f.Copies = p.N
	return f, nil
}

// planBestOf refuses a best_of above n: one engine would have to choose among all
// samples.
func (f *Fan) planBestOf(p *Peeked) error {
	kind := p.FieldKind(FieldBestOf)
	if !p.Given(FieldBestOf) || p.Route != RouteChatCompletions && p.Route != RouteCompletions {
		return nil
	}
	v, ok := p.Int(FieldBestOf)
	if kind != KindNumber || !ok || v != 1 && v != int64(p.N) {
		return InvalidRequest("best_of", "best_of is %s; with prefill and decode apart it can only be n, which is %d: leave it out", show(kind, p.Raw(FieldBestOf)), p.N)
	}
	f.bestOf = v > 1
	return nil
}

// Edit makes the copy's body from the client's: one sample, and a seed of its own
// if the client sent one (equal seeds would give equal samples). It may be called for
// both legs of a pair; both get the same. The caller's own edits may not touch n,
// best_of and seed.
func (f Fan) Edit(s *Splicer, k int) {
	if f.Copies == 1 {
		return
	}
	s.SetInt(FieldN, 1)
	if f.bestOf {
		s.SetInt(FieldBestOf, 1)
	}
	if f.seeded && k > 0 {
		s.SetInt(FieldSeed, offsetSeed(f.seed, k))
	}
}

// offsetSeed is seed + by. A seed that is not negative wraps around to 0 instead of
// becoming negative, as not every engine accepts negative seeds.
func offsetSeed(seed int64, by int) int64 {
	if seed < 0 {
		return seed + int64(by)
	}
	return int64((uint64(seed) + uint64(by)) & math.MaxInt64)
}

// Index is the client's index of the choice that has the index prompt in copy k.
func (f Fan) Index(k, prompt int) int { return prompt*f.Copies + k }

// FanError says why the answers of copies can't become one answer.
type FanError struct {
	// Copy is the index of the copy at fault.
	Copy int
	// Reason is for a client too: it has no text of the engine's.
	Reason string
	// FromEngine: the engine itself reported an error. Status is its code if that is an HTTP
	// status of an error, else 0; Message its text, Data the start of its JSON; both
	// are at most 2 KiB.
	FromEngine bool
	// Limit: a limit of the merger was exceeded, which is no fault of the engine.
	Limit   bool
	Status  int
	Message string
	Data    []byte
}

// Error is the copy and the reason, without the engine's text.
func (e *FanError) Error() string {
	return fmt.Sprintf("cannot merge the answer of copy %d: %s", e.Copy, e.Reason)
}

// Is reports an exceeded limit as an ErrLimit.
func (e *FanError) Is(target error) bool { return target == ErrLimit && e.Limit }

// ErrLimit matches, by errors.Is, errors about a limit of the router: no engine is at
// fault.
var ErrLimit = errors.New("over a limit of the router")

func fanLimit(k int, format string, args ...any) *FanError {
	e := fanFault(k, format, args...)
	e.Limit = true
	return e
}

func fanFault(k int, format string, args ...any) *FanError {
	return &FanError{Copy: k, Reason: fmt.Sprintf(format, args...)}
}

func fanTold(k int, json []byte) *FanError {
	e := &FanError{Copy: k, FromEngine: true, Reason: "the engine reported an error"}
	e.Status, e.Message, _ = ReadErrorObject(json)
	e.Data = append(e.Data, json[:min(len(json), maxLastError)]...)
	return e
}
