// Package fleet knows the workers: which there are, what they serve, whether
// they can be given work, and whether they are still there at all.
//
// # Goal
//
// One owner for every fact about an engine. The fleet turns what an operator
// registers and what an engine says about itself into ranks of the admission
// gate, keeps their state there up to date (health, breaker, drain), and tells
// those who have a request on a worker when that worker has died. A thousand
// workers cost one goroutine and the checks themselves.
//
// # Non-goals
//
// Requests: the fleet never sees one, and never touches a hold. Choosing a rank
// is the gate's and the policies' business.
//
// # Life of a worker
//
//	f := fleet.New(gate, fleet.Options{…}, clock)
//	w, created, err := f.Add(ctx, fleet.WorkerSpec{URL: "http://10.0.0.7:30000", Type: config.WorkerPrefill})
//	… pending: it may be down; it is looked at until it answers once
//	… ready: its facts were read, its ranks are candidates at the gate
//	… unhealthy: registered, but given no work until it answers again
//	f.Remove(w.ID())
//	… draining: no new work; gone when its requests are over
//
// A worker's id is made from its URL and so is the same after a restart of the
// router. The same URL registered again with the same settings is the same
// worker; with other settings it is replaced in one step, in which it is never
// absent; after a removal it is a new generation that starts anew.
//
// A request finds its engine by the rank it was granted:
//
//	rank := ticket.Decode.Data().(*fleet.Rank)
//	resp, err := rank.Endpoint().Do(ctx, …)
//	rank.NoteProgress()              // bytes came: it is alive
//	rank.ReportSuccess()             // or ReportFailure: its breaker
//	<-rank.Alive().Done()            // it died: take the request back
//
// # Busy, unhealthy, dead
//
// SGLang's health route runs a generation. It takes a second at best and fails
// while the scheduler is busy, so it is not asked alone: a second probe,
// /model_info, needs no scheduler. A worker that fails the first and answers the
// second is busy if it has requests: that is forgiven while bytes come from it,
// or else for worker_busy_grace_secs. It is unhealthy, that is given no work,
// after the threshold of failures in a row that were not forgiven. It is dead
// only after the threshold of failures in a row of the second probe, with no
// byte from it meanwhile on any request.
//
// vLLM's health route needs no scheduler and is asked for both.
//
// # Who can be paired
//
// A prefill and a decode rank are paired within one dialect, connector and form
// of KV cache: their pair group at the gate. vLLM says nothing about its connector
// over HTTP, so a prefill worker is asked by a request for one token when it
// comes, a bounded number of times; a decode worker cannot be asked, and has that
// of the prefill workers of its model. What the operator sets holds. What cannot
// be paired is told in Info and the log.
//
// Two more things are watched. A vLLM decode worker counts what it got from
// others; one at which nothing arrives of what requests were handed
// (Rank.NoteHandOff) is reported. A pair that fails to hand KV cache over several
// times in a row (Fleet.ReportTransferFailure), while another could serve, is
// barred at the gate for a minute, twice as long after each failed trial.
//
// A prefill worker is kept from work until what a pair needs is read from it: the
// bootstrap port, the connector, Mooncake's engine ids. A few failures end that.
//
// # Capacities and load
//
// What a rank can take is what the operator set, else what the engine tells of
// it: in SGLang /v1/loads for each data-parallel rank, else /server_info; in vLLM
// the KV cache by /metrics. A worker
// that is scheduled as a whole has the sum of its ranks. New facts reach the gate
// in place, so that holds stay where they are. A capacity that nobody tells is
// listed in Info and counted by a metric; the gate then goes by the number of
// requests.
//
// The load that engines report is read after each good check (but of idle SGLang
// workers in fleets so large that these are checked less often) and kept with its
// age. It decides nothing here.
//
// # Locks
//
// Fleet.mu is held while a change is worked out and handed to the gate, so that
// the gate sees states in the order in which they came about. Under it are
// taken: the gate's own lock, the breakers', that of the barred pairs and the
// scheduler's. Nothing is
// logged or sent under it.
package fleet
