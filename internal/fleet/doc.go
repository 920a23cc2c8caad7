// Package fleet is the registry of workers: which there are, which models they
// serve, whether they are healthy, and whether they are alive at all.
//
// # Goal
//
// One owner for every fact about an engine. The fleet turns what an operator
// registers and what an engine says about itself into ranks of the admission
// gate, keeps their state there up to date (health, breaker, drain), and notifies
// the requests on a worker when that worker has died. A thousand workers cost one
// goroutine and the checks themselves.
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
//	… pending: it may be down; it is checked until it answers once
//	… ready: its facts were read, its ranks are candidates at the gate
//	… unhealthy: registered, but it gets no requests until it answers again
//	f.Remove(w.ID())
//	… draining: no new requests; it leaves the registry when its requests have ended
//
// A worker's id is made from its URL and so is the same after a restart of the
// router. The same URL registered again with the same settings is the same
// worker; with other settings it changes in one step, in which it is never absent;
// after a removal it is a new generation that starts anew. Patch changes some settings,
// SetDrained takes a worker out of use and back (lifecycle.go).
//
// Workers that are declared elsewhere come by Reconcile, which also says of each whether
// it may be chosen and whether it is about to leave (Declared).
//
// A request finds its engine by the rank it was granted:
//
//	rank := ticket.Decode.Data().(*fleet.Rank)
//	resp, err := rank.Endpoint().Do(ctx, …)
//	rank.NoteAdvance()               // bytes of the answer came: its scheduler runs
//	rank.ReportSuccess()             // or ReportFailure: its breaker
//	<-rank.Alive().Done()            // it died: cancel the request and retry it
//
// # Busy, unhealthy, dead
//
// SGLang's health route runs a generation. It takes a second at best and fails
// while the scheduler is busy, so there is a second probe, the liveness probe, of a
// route that needs no scheduler (the dialect's AlivePath). A worker that fails the first and answers the
// second is busy if it has requests: the failure is forgiven while bytes come from
// it, or else for worker_busy_grace_secs. It is unhealthy, and gets no requests,
// after health.failure_threshold failures in a row that were not forgiven. It is
// dead only after as many failures in a row of the liveness probe, with no byte from
// it meanwhile on any request.
//
// vLLM's health route needs no scheduler and is used for both probes.
//
// What a worker is asked and what its answers mean is its dialect's business (package
// engine). The fleet decides when to ask and how long to wait, and sends the questions.
//
// # Wedged
//
// A scheduler may stand still while its HTTP server answers. No health check finds that in
// every engine, so that ranks are judged by their requests: legs register with Rank.Watch
// and report their progress, and each rank with legs is looked at several times within
// worker_wedge_secs. One without progress for that long, and for the time that its booked
// prompts are given, is suspect. From shortly before that its worker is asked what only a
// running scheduler can answer: the dialect's SchedulerPath, its counters
// (engine.RankLoad.Mark), its SchedulerQuestions. What answers, or moves, is progress. A rank
// that stays suspect for a while, with nothing that speaks for it, is wedged: it is no
// candidate, legs that are not begun to be answered are told to leave (LegListener), and the
// others a little later. It is asked on until there is a sign of progress.
//
// # Who can be paired
//
// A prefill and a decode rank are paired within one dialect, connector and form
// of KV cache: their pair group at the gate. Where the engine says nothing about its
// connector over HTTP, as vLLM, a prefill worker is probed by a request for one token when
// it is registered, a bounded number of times; a decode worker cannot be probed, and
// inherits the connector of the prefill workers of its model. What the operator
// configures takes precedence. Info and the log say which workers cannot be paired.
//
// KV transfers are watched too. A vLLM decode worker counts the KV cache that it
// received; one that was handed prompts (Rank.NoteHandOff) and received nothing is
// reported. A pair whose transfers fail several times in a row
// (Fleet.ReportTransferFailure), while another pair could serve, is quarantined at
// the gate for a minute, and for twice as long after each failed trial.
//
// A prefill worker gets no requests until what a pair needs is read from it: the
// bootstrap port, the connector, Mooncake's engine ids. After a few failures it is
// used without them.
//
// # Capacities and load
//
// The capacity of a rank is what the operator configured, else what the engine
// reports: in SGLang /v1/loads for each data-parallel rank, else /server_info; in
// vLLM the KV cache by /metrics. A worker that is scheduled as a whole has the sum
// of its ranks. New facts reach the gate in place, so that holds stay where they
// are. An unknown capacity is listed in Info and counted by a metric; the gate then
// uses the number of requests instead.
//
// The load that engines report is read at an interval of its own, once for all uses
// (load_monitor.go): with a check where one is due, so that its connection serves both,
// and not from idle workers of large fleets while nothing is decided by it. It is handed
// to the gate and taken back there when it is too old; it decides nothing here.
//
// # KV caches
//
// Each rank has up to two ranks in the index of KV caches (package kv): one for the prompts
// that it was sent, as long as the same engine may have them (kvranks.go), and one for what
// its engine's events tell, while their stream can be relied on (kvstreams.go). Where events
// are is read after an engine's facts (kvsources.go). An engine that is dead, another process,
// or was away and cannot be told from another one has nothing cached.
//
// # Text
//
// Engines that take token ids give the files by which their model's text becomes tokens
// (texts.go), unless they are configured (textpaths.go). A worker gets no requests before
// they are read, and the first with certain files not before the engine was asked for the
// tokens of some texts, to compare them. Fleet.Text is what is known of a pool's text. The
// workers of one model are of one kind (kinds.go): all by HTTP or all by gRPC, and with one
// tokenizer.
//
// # In a cluster
//
// The fleet of a member of a cluster (JoinCluster) tells the other members what requests
// ordered of workers (cluster_orders.go) and what its sources declare (cluster_declared.go),
// as documents of package cluster, and puts in force what they tell. It tells what came of
// trying ranks lately (cluster_trials.go), from which the keeper finds out whether a rank
// fails all members or some, and has the keeper's view for operators (cluster_view.go). Its
// own checks, breakers and ranks at the gate are as without a cluster.
//
// # Locks
//
// Lock order: Fleet.mu, then any of the gate's own lock, a breaker's, the quarantine's, the
// index's, a stream's and the schedule's. Fleet.mu is held while a change is computed and
// applied to the gate, so that the gate sees states in the order in which they happened.
// Nothing is sent while it is held.
package fleet
