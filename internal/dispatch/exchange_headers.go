package dispatch

import (
	"strconv"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
)

// setQueueHeader puts the time at the gate into the answer's header: whole
// milliseconds, over all waits.
func (x *exchange) setQueueHeader() {
	if !x.out.committed {
		x.setHeader(HeaderQueueMS, strconv.FormatInt(x.ticket.Waited().Milliseconds(), 10))
	}
}

// setPlaceHeaders puts the granted ranks there too: those of the last attempt when the
// status is sent. It is called by the handler while no keep-alive can be written.
func (x *exchange) setPlaceHeaders() {
	x.setQueueHeader()
	if x.out.committed {
		return
	}
	if r := x.ticket.Prefill; r != nil {
		x.setHeader(HeaderPrefillWorker, r.Data().(*fleet.Rank).Name())
	}
	x.setDecodeHeader()
}

// setWorkerHeader names the worker in the answer's header, as setPlaceHeaders does.
func (x *exchange) setWorkerHeader(rank *fleet.Rank) {
	name := HeaderDecodeWorker
	if rank.Worker().Role() == admission.RolePrefill {
		name = HeaderPrefillWorker
	}
	delete(x.w.Header(), HeaderDecodeWorker)
	delete(x.w.Header(), HeaderPrefillWorker)
	x.setHeader(name, rank.Name())
}
