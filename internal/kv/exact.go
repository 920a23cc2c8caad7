package kv

import "github.com/sluice-router/sluice/internal/kv/events"

// Exact follows the events of one engine's rank: it makes keys of the token ids that they
// tell, under Scopes of FormTokens. It is the Sink of one stream; other methods are safe for
// concurrent use.
type Exact struct {
	x     *Index
	rank  *Rank
	model string
}

var _ events.Sink = (*Exact)(nil)

// NewExact adds a rank to x whose blocks are those of an engine that serves a base model,
// which is called as Scope.Model is in the keys of prompts: events do not name it.
func NewExact(x *Index, s RankSpec, model string) *Exact {
	return &Exact{x: x, rank: x.Add(s), model: model}
}

// Rank returns the rank that holds the blocks.
func (e *Exact) Rank() *Rank { return e.rank }

// Drop removes the rank from the index. What is told after that is ignored.
func (e *Exact) Drop() { e.x.Drop(e.rank) }

// BlockSize returns how many tokens a block has: the Size of Scopes whose keys can match.
// Zero: not known yet.
func (e *Exact) BlockSize() int { return 0 }

// Live tells whether what is held can be relied on.
func (e *Exact) Live() bool { return false }

// Stored is of events.Sink.
func (e *Exact) Stored(*events.Stored) {}

// Removed is of events.Sink.
func (e *Exact) Removed(*events.Removed) {}

// Cleared is of events.Sink.
func (e *Exact) Cleared() { e.x.Clear(e.rank) }

// State is of events.Sink.
func (e *Exact) State(events.State) {}
