package sim

import (
	"context"
	"fmt"
	"sync"
)

// RankState is one data-parallel rank's use of its capacities. Tokens of KV are
// held in whole pages.
type RankState struct {
	Rank         int `json:"rank"`
	KVTokens     int `json:"kv_tokens"`      // held
	PeakKVTokens int `json:"peak_kv_tokens"` // the most since the start or ResetLog
	KVCapacity   int `json:"kv_capacity"`
	PageSize     int `json:"page_size"`
	MaxRunning   int `json:"max_running"`
	// Running sequences compute or decode; Waiting ones wait for memory, a slot
	// or their turn; Transferring ones hold memory and wait for KV to come or go.
	Running        int `json:"running"`
	Waiting        int `json:"waiting"`
	WaitingTokens  int `json:"waiting_tokens"` // prompt tokens of those waiting
	Transferring   int `json:"transferring"`
	PrefillBatches int `json:"prefill_batches"` // computed, with Timing.PrefillStep
	CachedBlocks   int `json:"cached_blocks"`   // in the prefix cache
}

// Pages is the rank's capacity in KV pages, as engines count it.
func (r RankState) Pages() int { return r.KVCapacity / max(1, r.PageSize) }

// Ranks are the states of all ranks now.
func (w *Worker) Ranks() []RankState {
	cached := make([]int, w.opt.DPSize)
	for rank := range cached {
		cached[rank] = w.CachedBlocks(rank)
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	out := make([]RankState, 0, len(w.counts))
	for i, c := range w.counts {
		out = append(out, RankState{
			Rank: i, KVTokens: c.used, PeakKVTokens: c.peak, KVCapacity: w.opt.KVTokens, PageSize: w.opt.PageSize,
			MaxRunning:   w.opt.MaxRunning,
			Running:      c.n[prefilling] + c.n[decoding],
			Waiting:      c.n[bootstrap] + c.n[queued] + c.n[prealloc],
			Transferring: c.n[transferring] + c.n[receiving],
			WaitingTokens: c.tokens[bootstrap] + c.tokens[queued] +
				c.tokens[prealloc], PrefillBatches: c.batches, CachedBlocks: cached[i],
		})
	}
	return out
}

// HoldKV takes that many tokens of a rank's KV, rounded up to pages. It waits in
// the queue for memory as a request of that size would, but takes no running slot.
// free gives them back, once; after a kill it does nothing.
func (w *Worker) HoldKV(ctx context.Context, rank, tokens int) (free func(), err error) {
	l := w.current.Load()
	if l == nil {
		return nil, fmt.Errorf("cannot hold KV of simulated worker %s: it is not running", w.id)
	}
	need := w.pages(tokens)
	if rank < 0 || rank >= w.opt.DPSize || tokens < 0 || need > w.opt.KVTokens {
		return nil, fmt.Errorf("cannot hold %d KV tokens at rank %d of simulated worker %s: it has %d ranks of %d", tokens, rank, w.id, w.opt.DPSize, w.opt.KVTokens)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	stop := context.AfterFunc(l.ctx, func() { cancel(errKilled) })
	defer stop()
	if err := l.memory[rank].take(ctx, 0, need); err != nil {
		cancel(nil)
		return nil, fmt.Errorf("cannot hold %d KV tokens of simulated worker %s: %w", tokens, w.id, err)
	}
	cancel(nil)
	if !l.book(w, rank, need) {
		return func() {}, nil
	}
	var once sync.Once
	return func() {
		once.Do(func() {
			if l.book(w, rank, -need) {
				l.memory[rank].giveBack(0, need)
			}
		})
	}, nil
}

// book counts memory that no running request holds. Once the process ends it does
// nothing and returns false.
func (l *lifetime) book(w *Worker, rank, tokens int) bool {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return false
	}
	l.booked[rank] += tokens
	l.mu.Unlock()
	w.hold(rank, tokens)
	return true
}

// unbook removes all that was booked, when the process has ended.
func (l *lifetime) unbook(w *Worker) {
	for rank, tokens := range l.booked {
		w.hold(rank, -tokens)
	}
}
