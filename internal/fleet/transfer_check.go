package fleet

import "sync/atomic"

// silentHandOffs is how many prompts a decode worker must have been handed, with
// nothing moved, to be reported.
const silentHandOffs = 5

// transferCheck watch whether the KV cache that requests hand to a decode worker
// arrives: the answers are right either way, the engine computes the prompt again
// in silence.
type transferCheck struct {
	// handed counts prompts handed over; see Rank.NoteHandOff.
	handed atomic.Int64
	silent atomic.Bool // many were handed over and nothing moved
	moving atomic.Bool // something moved since the worker came

	// owned by the check that runs
	known bool    // there was a reading
	moved float64 // by the last reading
	base  int64   // handed, when something last moved
	prev  int64   // handed, by the last reading
}

// read takes the engine's own count of what it got from others into account, and
// tells whether silent turned.
func (t *transferCheck) read(moved float64) (turned bool) {
	handed := t.handed.Load()
	switch {
	case !t.known || moved < t.moved:
		// The first reading, or the engine started anew.
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

// forget begins anew with another engine. The check that runs calls it.
func (t *transferCheck) forget() {
	t.known = false
	t.silent.Store(false)
	t.moving.Store(false)
}

// state is what Info tells.
func (t *transferCheck) state() string {
	switch {
	case t.silent.Load():
		return "nothing moves"
	case t.moving.Load():
		return "moves"
	}
	return ""
}

// NoteHandOff tells that a request on this decode rank was handed KV cache of at
// least one block to fetch from its prefill.
func (r *Rank) NoteHandOff() { r.worker.transfers.handed.Add(1) }

func (f *Fleet) logTransfers(w *Worker) {
	if w.transfers.silent.Load() {
		f.log.Warn("no KV cache arrives at the decode worker, which computes the prompts again: check that its connector is the prefill worker's and that they can reach each other",
			"worker", w.spec.URL, "id", w.id, "kv_connector", w.Connector())
		return
	}
	f.log.Info("KV cache arrives at the decode worker again", "worker", w.spec.URL, "id", w.id)
}
