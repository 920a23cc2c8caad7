// Package classify reads from a request's headers what the gate needs beside the
// ranks: its class, the longest wait that its client accepts, and its priority.
//
// # Goal
//
// A pure function from a request's headers to a small value. The value's fields
// go into the ticket one by one.
//
// # Non-goals
//
// Whether a class exists: the gate knows the class file, falls back to the
// default family, and counts unknown names. Waiting.
//
// # Who decides
//
// Headers name the class and bound the wait. A [Classifier], if there is one,
// has the last word and may also set what no header sets: a strict priority, a
// priority jump, a deadline that orders the class.
package classify

import (
	"net/http"
	"strconv"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

// Headers of clients, in canonical form. HeaderClass is the one of the public
// router of policy classes, HeaderClassAlias means the same.
const (
	HeaderClass      = "X-Dynamo-Meta-Policy-Class"
	HeaderClassAlias = "X-Sluice-Class"
	HeaderMaxQueue   = "X-Sluice-Max-Queue-Ms"
)

const (
	// NoSuchClass replaces names that no class can have. It is not a valid name itself.
	NoSuchClass = "?"
	// maxQueueMS is the longest wait a header may name, 24 days.
	maxQueueMS = 1<<31 - 1
)

// Request is what a request asks of the gate.
type Request struct {
	// Class is the name of a class or a family, NoSuchClass, or empty for the
	// default family.
	Class string
	// MaxQueue is how long the client would wait in the queue; it counts only if
	// HasMaxQueue is set. Zero: not at all. It orders nothing.
	MaxQueue    time.Duration
	HasMaxQueue bool

	// StrictPriority, PriorityJump (seconds) and ClassDeadline (from the arrival;
	// 0: none) are a Classifier's: the order in the class.
	StrictPriority int
	PriorityJump   float64
	ClassDeadline  time.Duration
}

// Facts are what a Classifier may go by. Nothing in it may be changed or kept.
type Facts struct {
	Header http.Header
	Peeked *openai.Peeked
	// Pool is the gate's pool of the model asked for.
	Pool string
	// PromptTokens is the estimate, or the count, of the whole prompt.
	PromptTokens int64
}

// Classifier changes what the headers asked for. It must be safe for concurrent
// use, quick, and free of effects.
type Classifier interface {
	Classify(facts *Facts, r *Request)
}

// Options of the classification. The zero value clamps nothing.
type Options struct {
	// MinQueue and MaxQueue bound what clients set with HeaderMaxQueue. Zero: no
	// bound.
	MinQueue, MaxQueue time.Duration
	// Classifier may be nil.
	Classifier Classifier
}

// Classify reads the headers of a request. It fails, with status 400, when they
// contradict each other or name a wait that is no number.
//
// The class may be named by either header, or by both or several times if it is
// the same name each time: different names are ambiguous, and a proxy that sets the
// class must be able to rely on it. A name that no class can have becomes NoSuchClass
// and is treated like the name of a class that does not exist.
func (o *Options) Classify(facts *Facts) (Request, *openai.Error) {
	var r Request
	for _, header := range [...]string{HeaderClass, HeaderClassAlias} {
		for _, name := range facts.Header[header] {
			if name == "" {
				continue
			}
			if !admission.ValidClassName(name) {
				name = NoSuchClass
			}
			if r.Class != "" && r.Class != name {
				return Request{}, openai.InvalidRequest("", "the headers %s and %s name different classes; send one of them, once", HeaderClass, HeaderClassAlias)
			}
			r.Class = name
		}
	}
	if err := o.maxQueue(facts.Header, &r); err != nil {
		return Request{}, err
	}
	if o.Classifier != nil {
		given, asked := *facts, r // the originals stay off the heap
		o.Classifier.Classify(&given, &asked)
		return asked, nil
	}
	return r, nil
}

// MaxQueueOf returns how long the client lets its request wait, by its header alone. It
// is false where the client does not say, or not in a way that can be read.
func (o *Options) MaxQueueOf(h http.Header) (d time.Duration, ok bool) {
	var r Request
	if o.maxQueue(h, &r) != nil {
		return 0, false
	}
	return r.MaxQueue, r.HasMaxQueue
}

func (o *Options) maxQueue(h http.Header, r *Request) *openai.Error {
	values := h[HeaderMaxQueue]
	if len(values) == 0 || len(values) == 1 && values[0] == "" {
		return nil
	}
	ms, ok := milliseconds(values[0])
	if !ok || len(values) > 1 {
		return openai.InvalidRequest("", "the header %s must be one whole number of milliseconds, at most %d", HeaderMaxQueue, maxQueueMS)
	}
	r.HasMaxQueue = true
	r.MaxQueue = max(ms, o.MinQueue)
	if o.MaxQueue > 0 {
		r.MaxQueue = min(r.MaxQueue, o.MaxQueue)
	}
	return nil
}

func milliseconds(s string) (time.Duration, bool) {
	ms, err := strconv.ParseUint(s, 10, 31)
	return time.Duration(ms) * time.Millisecond, err == nil
}
