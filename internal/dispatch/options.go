package dispatch

import (
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/kv"
)

// Options are what a dispatcher is told.
type Options struct {
	// Config is the whole configuration, complete.
	Config *config.Config
	// Index knows which ranks hold which prompts in their caches. Nil: nothing is known.
	Index *kv.Index

	// Texts tells how the text of a pool's model becomes tokens. It is called for every
	// request, and must not wait. Nil: text becomes tokens for no pool.
	Texts func(pool string) Text
	// TextQueue orders the work of making tokens; nil: all of it is done at once.
	TextQueue TextQueue

	// Renderer makes token ids of chats that the pool's own files cannot be used for. It may
	// be nil.
	Renderer Renderer

	// Bounds that are no settings. Zero: the constants below.

	// PrefillGrace is how long a prefill leg may stay open once decode is over.
	PrefillGrace time.Duration
	// VerdictWait is how long the report of a broken hand-off waits for the other
	// leg to say why.
	VerdictWait time.Duration
	// MaxErrorBody bounds an engine's error body that is passed on, in bytes.
	MaxErrorBody int
	// MaxBufferedAnswer is how much of a plain answer is collected before the
	// client gets its first byte, so that one that breaks off can still be told as
	// an error, in bytes.
	MaxBufferedAnswer int
	// MaxLogprobBody bounds the prefill answer that is kept for its logprobs, in
	// bytes.
	MaxLogprobBody int
}

const (
	// prefillGrace is that of the admission contract.
	prefillGrace      = 5 * time.Second
	verdictWait       = 50 * time.Millisecond
	maxErrorBody      = 1 << 20
	maxBufferedAnswer = 1 << 20
	maxLogprobBody    = 64 << 20
)

func (o *Options) complete() {
	o.Config.MustBeComplete()
	orConstant(&o.PrefillGrace, prefillGrace)
	orConstant(&o.VerdictWait, verdictWait)
	orConstant(&o.MaxErrorBody, maxErrorBody)
	orConstant(&o.MaxBufferedAnswer, maxBufferedAnswer)
	orConstant(&o.MaxLogprobBody, maxLogprobBody)
}

func orConstant[T int | time.Duration](v *T, c T) {
	if *v == 0 {
		*v = c
	}
}
