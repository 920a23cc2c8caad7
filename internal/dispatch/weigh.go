package dispatch

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/telemetry"
	"github.com/sluice-router/sluice/internal/tokens"
)

// Headers by which clients narrow the ranks their request may run on.
const (
	HeaderRequireLabels = "X-Sluice-Require-Labels"
	HeaderPreferLabels  = "X-Sluice-Prefer-Labels"
)

// weigh tells the gate what the request asks beside ranks: its class, how long
// its client would wait, and what it will hold.
func (x *exchange) weigh(p *openai.Peeked, pool string) *failure {
	t := &x.ticket
	if !x.call.Passing {
		x.wanted = readWanted(p)
	}
	x.prompt = tokens.Measure(p)
	x.estimate = x.d.estimator.Estimate(pool, &x.prompt)
	c, bad := x.d.classes.Classify(&classify.Facts{Header: x.call.Header, Peeked: p, Pool: pool, PromptTokens: x.estimate})
	if bad != nil {
		return &failure{reason: reasonBadRequest, local: bad}
	}
	t.Class = c.Class
	t.StrictPriority, t.PriorityJump = c.StrictPriority, c.PriorityJump
	if c.HasMaxQueue {
		t.Deadline = x.d.clock.Now().Add(c.MaxQueue)
	}
	if c.ClassDeadline > 0 {
		t.ClassDeadline = x.d.clock.Now().Add(c.ClassDeadline)
	}
	t.Legs = p.Samples()
	t.PromptTokens = x.estimate * int64(max(x.fan.Copies, 1))
	t.ReserveTokens = x.reserve(p, pool)
	t.Bytes = int64(len(p.Body))
	if x.d.cfg.Admission.TrackOutputBlocks {
		x.expected = p.MaxTokens
	}
	return nil
}

// reservesAuto: what an answer has beyond its reservation is then booked as it grows,
// whatever track_output_blocks says.
func (d *Dispatcher) reservesAuto() bool {
	return d.cfg.Admission.ReserveOutputTokens == config.ReserveAuto
}

// reserve returns the tokens of output to find room for in each leg.
func (x *exchange) reserve(p *openai.Peeked, pool string) int64 {
	a := &x.d.cfg.Admission
	if !x.d.reservesAuto() {
		return int64(a.ReserveOutputTokens)
	}
	if x.call.Passing { // answers with no tokens
		return 0
	}
	n := min(x.d.outputs.Expect(pool), int64(a.ReserveOutputCap))
	if p.MaxTokens >= 0 {
		n = min(n, p.MaxTokens)
	}
	return n
}

// labels reads the labels that ranks must have, or had better have, out of
// headers: "zone=a, gpu=h100", and with a weight "zone=a;w=5".
func (x *exchange) labels(spec *admission.TargetSpec) *failure {
	h := x.call.Header
	require, f := readLabels(h, HeaderRequireLabels)
	if f != nil {
		return f
	}
	prefer, f := readLabels(h, HeaderPreferLabels)
	if f != nil {
		return f
	}
	for _, r := range require {
		for l := range spec.Require {
			spec.Require[l] = append(spec.Require[l], r.Label)
		}
	}
	for l := range spec.Prefer {
		spec.Prefer[l] = prefer
	}
	return nil
}

// maxLabels bounds the labels of one header.
const maxLabels = 16

func readLabels(h http.Header, name string) ([]admission.Preference, *failure) {
	var out []admission.Preference
	for _, line := range h[name] {
		for one := range strings.SplitSeq(line, ",") {
			one = strings.TrimSpace(one)
			if one == "" {
				continue
			}
			pair, weight, weighted := strings.Cut(one, ";w=")
			key, value, ok := strings.Cut(pair, "=")
			w := 1
			if weighted {
				n, err := strconv.Atoi(weight)
				ok = ok && err == nil && n > 0 && n <= 1_000_000 && name == HeaderPreferLabels
				w = n
			}
			if !ok || key == "" || len(out) == maxLabels {
				return nil, &failure{reason: reasonBadRequest,
					local: openai.InvalidRequest("", "the header %s must be up to %d labels as in \"zone=a, gpu=h100\"; %s takes a weight as in \"zone=a;w=5\"", name, maxLabels, HeaderPreferLabels)}
			}
			out = append(out, admission.Preference{Label: admission.Label{Key: key, Value: value}, Weight: w})
		}
	}
	return out, nil
}

// learn tells the estimators what the engine counted.
func (x *exchange) learn() {
	if x.d.reservesAuto() && !x.call.Passing {
		n := max(x.call.Record.Usage.CompletionTokens, x.output)
		x.d.outputs.Observe(x.ticket.Target.Model(), n/int64(max(x.ticket.Legs, 1)))
	}
	if u := x.call.Record.Usage; u.PromptTokens > 0 && !x.call.Passing {
		x.d.estimator.Observe(x.ticket.Target.Model(), &x.prompt, x.estimate, u)
	}
}

// counter follows the growth of the answer of this attempt, in KV blocks of the
// rank that decodes it.
func (x *exchange) counter(rank *fleet.Rank) tokens.OutputCounter {
	if !x.d.cfg.Admission.TrackOutputBlocks && (!x.d.reservesAuto() || x.call.Passing) {
		return tokens.OutputCounter{}
	}
	t := &x.ticket
	return tokens.NewOutputCounter(tokens.OutputPlan{
		PromptTokens: t.PromptTokens, ReserveTokens: t.ReserveTokens, Legs: t.Legs,
		BlockSize: rank.Capacity().BlockSize, Expected: x.expected,
	})
}

// grow books the blocks that the answer has grown by.
func (r *relay) grow() {
	if n := r.output.Seen(r.scan.DataEvents, r.scan.Usage.CompletionTokens); n > 0 {
		r.x.ticket.Grow(n)
	}
	r.x.output = r.output.Tokens()
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
	default:
		f.reason = reasonNoWorkers
		f.local = openai.WorkersUnavailable(x.call.Peeked.Model, "", info, r.RetryAfter)
		if asks := x.narrowed(); asks != "" {
			f.local.Message += "; the request leaves only " + asks
		}
	}
	if r.Predicted {
		f.local = f.local.Predicted(wholeMS(r.Limit))
	}
	return f
}

// narrowed tells what a request says itself about the workers it may run on, for
// a message; empty if nothing.
func (x *exchange) narrowed() string {
	var asks []string
	for _, header := range [...]string{HeaderTargetWorker, HeaderTargetDecode, HeaderRequireLabels} {
		if v := strings.Join(x.call.Header[header], ", "); v != "" {
			asks = append(asks, "those of "+header+": "+telemetry.Clip(v))
		}
	}
	if _, adapter := x.d.fleet.Resolve(x.call.Peeked.Model); adapter != "" {
		asks = append(asks, "those with the adapter "+telemetry.Clip(adapter))
	}
	if x.pair && topology(x.d.cfg) == admission.TopologyRequired {
		asks = append(asks, "pairs in one KV-transfer domain")
	}
	return strings.Join(asks, ", of them ")
}

// wholeMS is a time that the gate took between two looks at the clock as it was
// asked for.
func wholeMS(ns int64) time.Duration { return time.Duration(ns).Round(time.Millisecond) }

func (x *exchange) gateName() string {
	if x.pair {
		return "prefill"
	}
	return "regular"
}
