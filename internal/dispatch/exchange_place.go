package dispatch

import (
	"strconv"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

// tellQueued puts the time at the gate into the answer's header: whole
// milliseconds, over all waits.
func (x *exchange) tellQueued() {
	if !x.out.committed {
		x.setHeader(HeaderQueueMS, strconv.FormatInt(x.ticket.Waited().Milliseconds(), 10))
	}
}

// tellPlace puts the granted ranks there too: those of the last attempt when the
// status is sent. It is called by the handler while no keep-alive can be written.
func (x *exchange) tellPlace() {
	x.tellQueued()
	if x.out.committed {
		return
	}
	if r := x.ticket.Prefill; r != nil {
		x.setHeader(HeaderPrefillWorker, r.Data().(*fleet.Rank).Name())
	}
	x.tellDecode()
}

// tellBeside names the worker in the answer's header, as tellPlace does.
func (x *exchange) tellBeside(rank *fleet.Rank) {
	name := HeaderDecodeWorker
	if rank.Worker().Role() == admission.RolePrefill {
		name = HeaderPrefillWorker
	}
	delete(x.w.Header(), HeaderDecodeWorker)
	delete(x.w.Header(), HeaderPrefillWorker)
	x.setHeader(name, rank.Name())
}
