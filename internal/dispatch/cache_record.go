package dispatch

import (
	"sync/atomic"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
)

// cacheRecord is that a rank was sent the prompt of one attempt. It is recorded before the
// leg is sent, so that siblings that come at the same time find it, and taken back if the
// engine did not accept the leg.
type cacheRecord struct {
	rank     *kv.Rank // nil: nothing is recorded
	added    int      // blocks that the rank was not known to hold
	accepted atomic.Bool
}

// maxAnswerText bounds what is kept of an answer's text until it is over, in bytes: the next
// turn finds so much of a longer one. It is kept for each stream, and not counted.
const maxAnswerText = freeAnswer

// sending records that rank is about to be sent the prompt on a leg.
func (k *promptKeys) sending(leg admission.Leg, rank *fleet.Rank) {
	if k == nil || rank.Approx() == nil {
		return
	}
	r := &k.records[leg]
	r.rank, r.added = rank.Approx(), k.c.index.Record(rank.Approx(), k.sent.keys())
	r.accepted.Store(false)
}

// sendingDecode is sending for the decode rank of a pair, which has the prompt's blocks handed
// over to it, where a later request may run whole on that rank.
func (x *attempt) sendingDecode(rank *fleet.Rank) {
	if x.keys != nil && x.d.caches.bypasses {
		x.keys.sending(admission.DecodeLeg, rank)
	}
}

// accepted notes that the engine has answered a leg with a good status: it computes the
// prompt. It may be called by any leg's goroutine.
func (k *promptKeys) accepted(leg admission.Leg) {
	if k != nil {
		k.records[leg].accepted.Store(true)
	}
}

// over takes the record of a leg back unless the leg was accepted.
func (k *promptKeys) over(leg admission.Leg) {
	if k == nil {
		return
	}
	r := &k.records[leg]
	if r.rank != nil && !r.accepted.Load() {
		k.c.index.Undo(r.rank, k.sent.keys(), r.added)
	}
	r.rank = nil
}

// keepsAnswer begins to collect the text of an answer, and tells whether that is wanted: the
// rank that computes it holds the prompt too, and the next turn of the conversation has both.
func (k *promptKeys) keepsAnswer(x *request) bool {
	if k == nil || !k.growing || x.translates || k.records[admission.DecodeLeg].rank == nil {
		return false
	}
	k.answer.Reset(x.call.Route, maxAnswerText)
	return true
}

// keepAnswer records what the rank of the decode leg holds once an answer is complete: the
// prompt and the answer's text, in the form of a message where the prompt is of messages.
func (k *promptKeys) keepAnswer() {
	if k == nil || k.records[admission.DecodeLeg].rank == nil {
		return
	}
	text := k.answer.Text()
	if len(text) == 0 || !k.growing {
		return
	}
	k.growing = false
	before := len(k.sent.keys())
	if k.framed {
		k.sent.frame([]byte(assistantRole))
	}
	k.sent.write(text)
	if len(k.sent.keys()) > before {
		k.c.index.Record(k.records[admission.DecodeLeg].rank, k.sent.keys())
	}
}
