package dispatch

import (
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
)

// refusalFailure turns the end of a wait at the gate into a failure.
func (x *exchange) refusalFailure(err error) *failure {
	var r *admission.Refusal
	if errors.As(err, &r) {
		return x.refusal(r)
	}
	return x.clientEnd(x.ctx.ended())
}

// refusal tells the client in the API's words what the gate refused, and why.
func (x *exchange) refusal(r *admission.Refusal) *failure {
	info := openai.AdmissionInfo{
		Gate: x.gateName(), Resource: r.Resource.String(), Class: r.Class,
		Retryable: true, QueueDepth: r.Depth,
		Predicted: r.Predicted, EstimatedWait: r.Estimate,
	}
	overload := x.d.cfg.Admission.OverloadStatus
	slots := r.PrefillSlots
	limit := openai.LimitInfo{PolicyClass: r.Class, Kind: string(r.LimitKind), Current: r.Current, Limit: r.Limit}
	f := &failure{err: r}
	switch r.Reason {
	case admission.QueueFull:
		f.reason = reasonQueueFull
		switch {
		case r.LimitKind == admission.LimitBytes:
			f.local = openai.QueueFull(int(r.Limit), info, r.RetryAfter)
			f.local.Message = "the requests that wait hold " + strconv.FormatInt(r.Current, 10) + " bytes, the limit is " + strconv.FormatInt(r.Limit, 10) + " (max_waiting_bytes); try again later"
		case slots:
			f.local = openai.PrefillQueueFull(int(r.Limit), info, r.RetryAfter)
		default:
			f.local = openai.QueueFull(int(r.Limit), info, r.RetryAfter)
		}
	case admission.QueueTimeout:
		f.reason = reasonQueueTimeout
		if slots {
			f.local = openai.PrefillQueueTimeout(time.Duration(r.Limit), info, r.RetryAfter)
		} else {
			f.local = openai.QueueTimeout(time.Duration(r.Limit), info, r.RetryAfter)
		}
	case admission.DeadlineExceeded:
		f.reason = reasonDeadline
		f.local = openai.QueueDeadlineExceeded(wholeMS(r.Limit), info, r.RetryAfter, overload)
	case admission.ClassQueueFull:
		f.reason = reasonClassQueueFull
		f.local = openai.ClassQueueFull(limit, info, r.RetryAfter, overload)
	case admission.AllOverloaded:
		f.reason = reasonOverloaded
		f.local = openai.AllWorkersOverloaded(info, r.RetryAfter, overload)
	case admission.Draining:
		f.reason = reasonDraining
		f.local = openai.Draining()
	case admission.GateUnavailable:
		f.reason = reasonGate
		f.local = openai.GateUnavailable(info, r.RetryAfter)
	default:
		f.reason, f.err = reasonNoWorkers, nil // the message says more
		f.local = openai.WorkersUnavailable(x.call.Peeked.Model, x.missingRole(), info, r.RetryAfter)
		if asks := x.narrowed(); asks != "" {
			f.local.Message += "; the request leaves only " + asks
		}
	}
	if r.Predicted {
		f.local = f.local.Predicted(wholeMS(r.Limit))
	}
	return f
}

// missingRole names the role of which the request's model has no candidate now, for a
// message; empty if it has some of each, or one role does all.
func (x *exchange) missingRole() string {
	if !x.plan.pair {
		return ""
	}
	none := func(role admission.Role) bool {
		return x.d.gate.PoolLoad(x.ticket.Target.Model(), role).Candidates == 0
	}
	decode, prefill := none(admission.RoleDecode), !x.attempt.bypasses() && none(admission.RolePrefill)
	switch {
	case prefill && decode:
		return admission.RolePrefill.String() + " and no " + admission.RoleDecode.String()
	case prefill:
		return admission.RolePrefill.String()
	case decode:
		return admission.RoleDecode.String()
	}
	return ""
}

// narrowed tells what a request says itself about the workers it may run on, for
// a message; empty if nothing.
func (x *exchange) narrowed() string {
	var asks []string
	for _, header := range [...]string{HeaderTargetWorker, HeaderTargetDecode, HeaderRequireLabels} {
		if v := strings.Join(x.call.Header[header], ", "); v != "" {
			asks = append(asks, "those of "+header+": "+text.Line(v))
		}
	}
	if _, adapter := x.d.fleet.Resolve(x.call.Peeked.Model); adapter != "" {
		asks = append(asks, "those with the adapter "+text.Line(adapter))
	}
	if x.plan.pair && topology(x.d.cfg) == admission.TopologyRequired {
		asks = append(asks, "pairs in one KV-transfer domain")
	}
	return strings.Join(asks, ", of them ")
}

// wholeMS rounds a limit, measured from two reads of the clock, back to the configured
// milliseconds.
func wholeMS(ns int64) time.Duration { return time.Duration(ns).Round(time.Millisecond) }

func (x *exchange) gateName() string {
	if x.plan.pair {
		return "prefill"
	}
	return "regular"
}
