package dispatch

import (
	"net/http"
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/openai"
)

// Call is one client request that was read and peeked at.
type Call struct {
	Route openai.Route
	// Method is the client's. Empty: POST.
	Method string
	// Path is the engine's path and query.
	Path string
	// Pattern names the path without what varies in it, where it is not Path
	// without the query.
	Pattern string
	// Passing: the request runs whole on one worker of any role, and passes with
	// its answer as it is.
	Passing bool
	// Form: the body is a form and goes with the client's Content-Type; NoBody:
	// there is none. Otherwise it is JSON.
	Form, NoBody bool
	// Header is the client's.
	Header http.Header
	// Peeked is the request's body. It must stay unchanged until Free is called.
	Peeked *openai.Peeked
	// Free is called once, when neither a leg nor another attempt can need the
	// body any more: often while the answer is still under way, sometimes after
	// Serve has returned. It may be nil.
	Free func()
	// Reserve takes memory for a further copy of the body into account, until Free is
	// called; its error tells that there is too little. It may be nil.
	Reserve func(bytes int) *openai.Error
	// Files counts the connections that the request opens to engines. It may be nil.
	Files Files
	// Memory counts answers that are collected before they are passed on. It may be
	// nil.
	Memory Memory
	// Client names who sent it, for fairness: the name of its key, else its address.
	Client string
	// ID is the request's id: given back, sent to the engines and logged.
	ID string
	// Arrived is when the request's head was read.
	Arrived time.Time
	// Record is filled in by Serve.
	Record Record
}

// Files counts the files of this process, so that none is opened that others need.
type Files interface {
	// TakeFiles counts n connections before they are opened, until GiveFiles. It is
	// false, and counts none, if there are not enough files.
	TakeFiles(n int) bool
	GiveFiles(n int)
}

// Memory counts memory that a request holds, in bytes.
type Memory interface {
	// ReserveMemory counts n bytes until ReleaseMemory. It is false, and counts none,
	// if there is no room.
	ReserveMemory(n int) bool
	ReleaseMemory(n int)
}

// Record is what the access log and the metrics tell of a request.
type Record struct {
	Model string
	// PrefillRank and DecodeRank are the URLs of the last attempt's ranks,
	// PrefillName and DecodeName what clients are told of them; "@rank" follows each
	// for one data-parallel rank.
	PrefillRank, DecodeRank string
	PrefillName, DecodeName string
	Attempts                int
	// Failed tells of the attempts that an engine failed, the last included, at which rank
	// each did and how: "URL 500, URL upstream_failed". It names three at most.
	Failed string
	// Class is the policy class, empty of what never came to the gate. Resource is
	// what it waited for or was refused for.
	Class, Resource string
	// Queued is the time at the gate, over all attempts.
	Queued time.Duration
	// Encoded is the time in which the request's text became tokens, the wait for a worker
	// of the encoding queue included; 0: it did not, here.
	Encoded time.Duration
	// Predicted is how long it would have waited, of one that was refused early.
	Predicted time.Duration
	// TTFT is the time from arrival to the first output token, or to the end of an
	// answer that does not stream; 0 if there was none.
	TTFT time.Duration
	// TPOT is the time per output token of a stream after its first; 0 if it had less
	// than two.
	TPOT time.Duration
	// Prefill is the length of the prefill leg that succeeded, if it was over
	// before the answer was.
	Prefill time.Duration
	// Status is what the client was sent, 499 if it left before.
	Status int
	// Reason is one of a closed set of words.
	Reason string
	// Code is the code that the client was told, where that is another word.
	Code string
	// Note tells what of the request was left out; empty if nothing was.
	Note string
	// Err is for the log only.
	Err   error
	Usage openai.Usage
	Bytes int64
	// PromptTokens and OutputTokens are what the engine reported, cached tokens included, else
	// what was estimated or counted; 0: not known.
	PromptTokens, OutputTokens int64
	// Cache tells how the rank that prefilled was chosen by what ranks have cached.
	Cache CacheRecord
	// PromptKeys are keys of the prompt's blocks, every LoggedEvery-th one, where the access log
	// tells hashes of prompts.
	PromptKeys []kv.Key
}

// CacheRecord is what was believed of KV caches where the rank of the last attempt was
// chosen, and what its engine reported. All counts are tokens of the prompt.
type CacheRecord struct {
	// Why is why the rank was chosen: holder, load, room or none. Empty: nobody asked what
	// is cached.
	Why string
	// Best is what some rank held that the request could use, Chosen what the chosen one
	// was believed to hold, Reported what its engine says that it reused, -1 if it did not.
	Best, Chosen, Reported int64
}

// ranks tells on which ranks the last attempt runs; nil: there is none of that kind.
func (r *Record) ranks(prefill, decode *fleet.Rank) {
	r.PrefillRank, r.PrefillName, r.DecodeRank, r.DecodeName = "", "", "", ""
	if prefill != nil {
		r.PrefillRank, r.PrefillName = prefill.ID(), prefill.Name()
	}
	if decode != nil {
		r.DecodeRank, r.DecodeName = decode.ID(), decode.Name()
	}
}

// StatusClientGone is recorded for a client that left before it got a status.
// It is never sent.
const StatusClientGone = 499
