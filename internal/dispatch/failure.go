package dispatch

import (
	"errors"
	"net/http"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Causes with which contexts are ended. The one that a failed call carries tells
// what to make of it.
var (
	errRequestTimeout = errors.New("the request's time limit passed")
	errPeerFailed     = errors.New("the other leg failed")
	errAttemptOver    = errors.New("the attempt is over")
	errDecodeOver     = errors.New("decode ended long before prefill")
	errWorkerDead     = errors.New("the worker is dead")
	errRankWedged     = errors.New("the worker's scheduler makes no progress")
	errRevoked        = errors.New("the gate needs the prefill slot back: no member of the cluster decides for all")
)

// ErrShutdown is the cause with which the server ends the contexts of requests
// that outlast its drain. Such a request is told so; it is no client that left.
var ErrShutdown = errors.New("the router is shutting down")

// Reasons, as they appear in the access log and as metric labels. They are a
// closed set.
const (
	reasonOK             = "ok"
	reasonClientGone     = "client_gone"
	reasonQueueFull      = "queue_full"
	reasonQueueTimeout   = "queue_timeout"
	reasonOverloaded     = "all_workers_overloaded"
	reasonClassQueueFull = "policy_class_queue_full"
	reasonDeadline       = "queue_deadline_exceeded"
	reasonNoWorkers      = "no_available_workers"
	reasonDraining       = "draining"
	reasonGate           = "gate_unavailable"
	reasonBadRequest     = "invalid_request"
	reasonNoModel        = "model_not_found"
	reasonNoRoute        = "route_not_found"
	reasonTimeout        = "upstream_timeout"
	reasonUpstreamTime   = "upstream_timeout"
	reasonUpstream       = "upstream_failed"
	reasonEngineStatus   = "engine_status"
	reasonEngineError    = "engine_error_event"
	reasonBrokenOff      = "broken_off"
	reasonWorkerDead     = "worker_dead"
	reasonWorkerWedged   = "worker_wedged"
	reasonTransfer       = "kv_transfer"
	reasonBufferFull     = "buffer_full"
	reasonTooManyFiles   = "too_many_connections"
	reasonRouterLimit    = "router_limit"
	reasonInternal       = "internal_error"
)

// failure is why an attempt did not give the client its answer.
type failure struct {
	leg  admission.Leg
	rank *fleet.Rank // nil: no engine is to blame

	// The engine's own answer, if it gave one: status ≥ 400, its body (bounded)
	// and the headers that belong to it.
	status      int
	body        []byte
	contentType string
	retryAfter  string

	// local is the error told to the client where there is no engine's answer.
	local *openai.Error
	err   error

	reason string
	// transfer: the leg reports a broken hand-off, which proves nobody guilty.
	transfer bool
	// unproven: decode was too late while its prefill had not finished, which
	// proves nothing against either.
	unproven bool
	// secondary: the leg was ended because of something else; never told, never
	// charged.
	secondary bool
	// clientLeft: the client left.
	clientLeft bool
	// reported: the client has it already, as the engine's own error event.
	reported bool
	// gaveUp: the engine took the request and then gave it up, in the middle of its
	// answer or without a word of its load: a status of 503 is no want of room then.
	gaveUp bool
	// ended: the engine itself ended what it had begun, see upstream.Response.
	ended bool
	// workerDead: the leg was taken back from a workerDead worker.
	workerDead bool
	// wedged: the leg was taken back from a rank whose scheduler makes no progress.
	wedged bool
	// rankMissing: the worker does not have the data-parallel rank that it was asked for.
	rankMissing bool
	// noRoute: the worker does not have the route.
	noRoute bool
	// noModel: the worker does not serve the model, though it did when it was last asked.
	noModel bool
	// ours: the router itself ended it, by a limit of its own or because it cannot
	// tell the client what the model said. Nobody is charged, nothing tried again.
	ours bool
}

// Error makes a failure loggable.
func (f *failure) Error() string {
	switch {
	case f.status != 0:
		return f.engineText()
	case f.err != nil:
		return f.err.Error()
	case f.local != nil:
		return f.local.Error()
	}
	return f.reason
}

// LogText tells what was wrong with a request whose failure is the client's, for the
// log: without anything of the request itself.
func (f *failure) LogText() string {
	switch {
	case f.clientLeft:
		return ""
	case f.status != 0:
		return f.engineText()
	case f.local != nil:
		return f.local.LogText()
	}
	return ""
}

// engineText tells which engine answered with an error, and what it said, for the log.
// What it says of the client's fault may repeat the prompt, and stays out.
func (f *failure) engineText() string {
	said := f.answered()
	if f.status >= 500 {
		if message := openai.EventErrorMessage(f.body); message != "" {
			said += ": " + text.Line(message)
		}
	}
	if f.err != nil {
		said += " (" + text.Line(f.err.Error()) + ")" // its body is cut
	}
	return said
}

// answered tells which engine answered with an error.
func (f *failure) answered() string {
	if f.reason == reasonEngineError {
		return f.engine() + " aborted the request or reported an error, status " + itoa(f.status)
	}
	return f.engine() + " answered with status " + itoa(f.status)
}

// engine names the engine by what it is for.
func (f *failure) engine() string {
	if f.rank != nil {
		switch role := f.rank.Worker().Role(); role {
		case admission.RolePrefill, admission.RoleDecode:
			return "the " + role.String() + " engine"
		}
	}
	return "the engine"
}

// summary tells how an engine failed, for those who may see the fleet: without its own
// words, which may repeat another client's prompt.
func (f *failure) summary() string {
	if f.status != 0 {
		return f.answered()
	}
	reason, _ := f.word()
	said := f.engine() + " failed: " + reason
	var ue *upstream.Error
	if asUpstream(f.err, &ue) && ue.Kind != upstream.KindTimeout {
		said += ", " + upstreamReason(ue)
	}
	return said
}

// cause is summary for the log: with what the error says.
func (f *failure) cause() string {
	if f.status != 0 {
		return f.engineText()
	}
	return f.engine() + " failed: " + text.Line(f.Error())
}

// word is the reason as it is logged and counted: the code that the client is told.
// Of an engine's failures the reason says more; code is then the client's.
func (f *failure) word() (reason, code string) {
	if f.local == nil || f.local.Code == "" || f.clientLeft {
		return f.reason, ""
	}
	switch f.reason {
	case reasonEngineStatus, reasonEngineError, reasonBrokenOff, reasonWorkerDead, reasonWorkerWedged, reasonTransfer:
		return f.reason, f.local.Code
	}
	return f.local.Code, ""
}

// rankOfBlame orders the failures of legs by how much they say: 2 for a leg's own, 1
// for the report of a broken hand-off, 0 for that of a leg that was ended.
func (f *failure) rankOfBlame() int {
	switch {
	case f.secondary:
		return 0
	case f.transfer:
		return 1
	}
	return 2
}

// own tells whether the failure is the leg's own doing: neither an echo of the
// other leg nor a report of a broken hand-off.
func (f *failure) own() bool { return f != nil && !f.secondary && !f.transfer }

// outOfFiles is the error for a router that is out of sockets or files (EMFILE): the same
// 503 that the listener answers then. No engine failed.
func outOfFiles(err error) *openai.Error {
	e := &openai.Error{Status: http.StatusServiceUnavailable, Type: "server_error", Code: "too_many_connections", RetryAfter: time.Second,
		Message: "the router is out of sockets or files (ulimit -n); try again shortly"}
	return e.WithCause(err)
}

// limitFailure is an answer that passed a limit of the router's own: nobody is at
// fault, and another attempt would end in the same way.
func limitFailure(leg admission.Leg, rank *fleet.Rank, what string) *failure {
	return &failure{leg: leg, rank: rank, ours: true, reason: reasonRouterLimit, local: openai.RouterLimit(what)}
}

func asUpstream(err error, to **upstream.Error) bool { return errors.As(err, to) }

var errPanicked = errors.New("the router panicked")

// errNoRoom is why an answer is collected no further: requests hold all that they may.
var errNoRoom = errors.New("no memory is left for its answer (--max-buffered-bytes)")
