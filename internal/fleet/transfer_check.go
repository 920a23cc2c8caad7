package fleet

import (
	"sync"
	"sync/atomic"
)

// silentHandOffs is how many prompts a decode worker must have been handed, with
// nothing moved, to be reported.
const silentHandOffs = 5

// transferCheck detects that the KV cache of prompts does not arrive at a decode
// worker: the answers are right either way, since the engine recomputes the prompt
// without saying so.
type transferCheck struct {
	// handed counts prompts handed over; see Rank.NoteHandOff.
	handed atomic.Int64
	silent atomic.Bool // many were handed over and nothing moved
	moving atomic.Bool // something moved since the worker came

	mu sync.Mutex // checks, the load monitor and the watch for wedged schedulers read
	// guarded by mu
	known bool    // there was a reading
	moved float64 // by the last reading
	base  int64   // handed, when something last moved
	prev  int64   // handed, by the last reading
}

// read takes the engine's own count of what it received, and reports whether silent
// changed.
func (t *transferCheck) read(moved float64) (turned bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	handed := t.handed.Load()
	switch {
	case !t.known || moved < t.moved:
		// The first reading, or the engine restarted.
		t.base = handed
	case moved > t.moved:
		t.base = handed
		t.moving.Store(true)
		turned = t.silent.Swap(false)
	case t.prev-t.base >= silentHandOffs:
		// Those before the last reading had the time from one check to the next.
		turned = !t.silent.Swap(true)
	}
	t.known, t.moved, t.prev = true, moved, handed
	return turned
}

// forget resets the state for another engine.
func (t *transferCheck) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.known = false
	t.silent.Store(false)
	t.moving.Store(false)
}

// state is Info's kv_transfer.
func (t *transferCheck) state() string {
	switch {
	case t.silent.Load():
		return "nothing moves"
	case t.moving.Load():
		return "moves"
	}
	return ""
}

// NoteHandOff counts a request on this decode rank that has at least one block of KV
// cache to fetch from its prefill.
func (r *Rank) NoteHandOff() { r.worker.transfers.handed.Add(1) }

func (f *Fleet) logTransfers(w *Worker) {
	if w.transfers.silent.Load() {
		f.log.Warn("KV transfer is not working: no KV cache arrives at the decode worker, which recomputes the prompts; check that prefill and decode use the same kv_connector and can reach each other",
			"worker", w.url, "id", w.id, "kv_connector", w.Connector())
		return
	}
	f.log.Info("KV transfer works again: KV cache arrives at the decode worker", "worker", w.url, "id", w.id)
}
