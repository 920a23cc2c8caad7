package dispatch

import (
	"context"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/sim"
)

// workerID is the id of a simulated worker in GET /workers.
func (r *rig) workerID(w *sim.Worker) string {
	r.t.Helper()
	for _, i := range r.fleet.Infos() {
		if i.URL == w.URL() {
			return i.ID
		}
	}
	r.t.Fatalf("%s is not registered", w.URL())
	return ""
}

const wantFacts = `,"nvext":{"extra_fields":["worker_id","timing","something_else"]}`

// told is what the member nvext of an answer tells.
type told struct {
	ID      string `json:"id"`
	Choices []any  `json:"choices"`
	NVExt   *struct {
		Worker *struct {
			Prefill     *string `json:"prefill_worker_id"`
			Decode      string  `json:"decode_worker_id"`
			PrefillRank *int    `json:"prefill_dp_rank"`
			DecodeRank  *int    `json:"decode_dp_rank"`
		} `json:"worker_id"`
		Timing *struct {
			Received int64    `json:"request_received_ms"`
			Waited   *float64 `json:"prefill_wait_time_ms"`
			TTFT     *float64 `json:"ttft_ms"`
			Total    *float64 `json:"total_time_ms"`
		} `json:"timing"`
	} `json:"nvext"`
}

func readTold(t *testing.T, s string) told {
	t.Helper()
	var v told
	if err := json.Unmarshal([]byte(s), &v); err != nil {
		t.Fatalf("%v: %s", err, s)
	}
	if n := strings.Count(s, `"nvext"`); n > 1 {
		t.Errorf("the member is there %d times: %s", n, s)
	}
	return v
}

// firstEvent is the data of a stream's first event.
func firstEvent(t *testing.T, a answer) string {
	t.Helper()
	if !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
		t.Errorf("the stream is not whole: %q", a.body)
	}
	event, _, _ := strings.Cut(a.body, "\n")
	return strings.TrimPrefix(event, "data: ")
}

// Every answer says where it comes from, and how long its request waited.
func TestAnswersTellTheirWorkers(t *testing.T) {
	for _, pair := range []bool{true, false} {
		o := rigOptions{sim: sim.Options{Regular: 1}}
		if pair {
			o = pd(rigOptions{})
		}
		r := newRig(t, o)
		decode := r.sim.Workers()[len(r.sim.Workers())-1]
		for _, extra := range []string{"", `,"stream":true`, `,"n":2`, `,"n":2,"stream":true`} {
			a := r.chat(extra)
			if a.status != 200 {
				t.Fatalf("status %d: %s", a.status, a.body)
			}
			prefill := ""
			if pair {
				prefill = r.workerID(r.sim.Prefill(0))
			}
			if got := a.header.Get(HeaderPrefillWorker); got != prefill {
				t.Errorf("%s %q, want %q", HeaderPrefillWorker, got, prefill)
			}
			if got := a.header.Get(HeaderDecodeWorker); got != r.workerID(decode) {
				t.Errorf("%s %q, want %q", HeaderDecodeWorker, got, r.workerID(decode))
			}
			if got := a.header.Get(HeaderQueueMS); got != "0" {
				t.Errorf("%s %q, want 0: nobody waited", HeaderQueueMS, got)
			}
			if strings.Contains(a.body, "nvext") {
				t.Errorf("facts that nobody asked for: %s", a.body)
			}
		}
	}
}

// Who asks gets the facts in the body too, in the first event of a stream, and
// nothing else of the answer changes.
func TestFactsInTheBodyWhenAsked(t *testing.T) {
	r := newRig(t, pd(rigOptions{}))
	for _, extra := range []string{"", `,"stream":true`, `,"n":2`, `,"n":2,"stream":true`} {
		stream := strings.Contains(extra, "stream")
		a := r.chat(extra + wantFacts)
		if a.status != 200 || strings.Count(a.body, `"nvext"`) != 1 {
			t.Fatalf("status %d: %s", a.status, a.body)
		}
		body := a.body
		if stream {
			body = firstEvent(t, a)
		}
		v := readTold(t, body)
		if v.NVExt == nil || v.NVExt.Worker == nil || v.NVExt.Timing == nil || len(v.Choices) == 0 {
			t.Fatalf("no facts in %s", body)
		}
		w, tm := v.NVExt.Worker, v.NVExt.Timing
		if w.Prefill == nil || *w.Prefill != r.workerID(r.sim.Prefill(0)) || w.Decode != r.workerID(r.sim.Decode(0)) || w.DecodeRank != nil {
			t.Errorf("workers %+v of %s", w, body)
		}
		if age := time.Since(time.UnixMilli(tm.Received)); age < 0 || age > time.Hour {
			t.Errorf("received %s ago", age)
		}
		if tm.Waited == nil || *tm.Waited != 0 || (tm.TTFT != nil) != stream || (tm.Total != nil) == stream {
			t.Errorf("timing %s", body)
		}
		if n := a.header.Get("Content-Length"); !stream && n != strconv.Itoa(len(a.body)) {
			t.Errorf("Content-Length %s of %d bytes", n, len(a.body))
		}
	}
	for extra, want := range map[string]string{
		`,"nvext":{"extra_fields":["worker_id"]}`:   "worker_id",
		`,"nvext":{"extra_fields":["timing"]}`:      "timing",
		`,"nvext":{"extra_fields":["token_ids"]}`:   "",
		`,"nvext":{"extra_fields":"worker_id"}`:     "",
		`,"nvext":null`:                             "",
		`,"user":"\"nvext\":{\"extra_fields\":[]}"`: "",
	} {
		a := r.chat(extra)
		v := readTold(t, a.body)
		got := ""
		switch {
		case v.NVExt == nil:
		case v.NVExt.Worker != nil && v.NVExt.Timing != nil:
			got = "both"
		case v.NVExt.Worker != nil:
			got = "worker_id"
		case v.NVExt.Timing != nil:
			got = "timing"
		}
		if a.status != 200 || got != want {
			t.Errorf("%s: status %d, facts %q, want %q: %s", extra, a.status, got, want, a.body)
		}
	}
	r.noViolations()
}

// The worker in a header is one that a pin takes, ranks included.
func TestToldWorkersCanBePinned(t *testing.T) {
	r := newRig(t, pd(rigOptions{dpAware: true, sim: sim.Options{Prefill: 2, Decode: 2, Worker: sim.WorkerOptions{DPSize: 2}},
		specs: func(_ *sim.Worker, s *fleet.WorkerSpec) { s.DPSize = 2 }}))
	a := r.chat(wantFacts)
	p, d := a.header.Get(HeaderPrefillWorker), a.header.Get(HeaderDecodeWorker)
	if a.status != 200 || !strings.Contains(p, "@") || !strings.Contains(d, "@") {
		t.Fatalf("status %d, workers %q and %q: %s", a.status, p, d, a.body)
	}
	if w := readTold(t, a.body).NVExt.Worker; w.PrefillRank == nil || w.DecodeRank == nil || *w.Prefill+"@"+strconv.Itoa(*w.PrefillRank) != p {
		t.Errorf("workers %+v, header %s", w, p)
	}
	for range 4 {
		b := r.chat("", HeaderTargetWorker, p, HeaderTargetDecode, d)
		if got := b.header.Get(HeaderPrefillWorker) + " " + b.header.Get(HeaderDecodeWorker); b.status != 200 || got != p+" "+d {
			t.Errorf("status %d from %s, pinned to %s %s: %s", b.status, got, p, d, b.body)
		}
	}
}

// A refusal tells how long its request waited, and no worker; an engine's error
// tells which worker it comes from.
func TestErrorsTellTheirWorkers(t *testing.T) {
	r := newRig(t, pd(rigOptions{limits: admission.Limits{PrefillSlots: 1, QueueSize: 5, QueueTimeout: time.Minute}}))
	r.sim.Prefill(0).SetFault(sim.Fault{Delay: time.Hour, Count: 1})
	first := make(chan answer)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { first <- r.do(ctx, "/v1/chat/completions", chatBody("")) }()
	r.until("the slot is taken", func() bool {
		n := 0
		for _, k := range r.gate.Stats().Ranks {
			n += k.PrefillSlots
		}
		return n == 1
	})
	a := r.chat("", "X-Sluice-Max-Queue-Ms", "30")
	ms, err := strconv.Atoi(a.header.Get(HeaderQueueMS))
	if a.status != 429 || a.code() != "queue_deadline_exceeded" || err != nil || ms < 30 || a.header.Get(HeaderDecodeWorker) != "" {
		t.Errorf("status %d, header %v: %s", a.status, a.header, a.body)
	}
	cancel()
	<-first
	r.idle()
	r.sim.Decode(0).SetFault(sim.Fault{Status: 418, Body: `{"error":{"message":"teapot"}}`, Count: 1})
	if a := r.chat(""); a.status != 418 || a.header.Get(HeaderDecodeWorker) != r.workerID(r.sim.Decode(0)) {
		t.Errorf("status %d, header %v: %s", a.status, a.header, a.body)
	}
}

func TestFactsAreSplicedOnlyWhereTheyFit(t *testing.T) {
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}})
	x := &request{d: &r.d.services, call: &Call{Arrived: time.Now()}, extensions: extensions{workers: true}}
	x.ticket.Target = r.gate.Resolve(admission.TargetSpec{Model: "sim-model", Shape: admission.Aggregated})
	if err := r.gate.Acquire(t.Context(), &x.ticket); err != nil {
		t.Fatal(err)
	}
	defer x.ticket.Close()
	member := string(x.appendExtension(nil, true))
	for in, want := range map[string]string{
		`{"a":1}`:                "{\"a\":1," + member + "}",
		"\n {\"a\":{}} \r\n":     "\n {\"a\":{}," + member + "} \r\n",
		`{}`:                     `{}`,
		`[{"a":1}]`:              `[{"a":1}]`,
		``:                       ``,
		`{"nvext":{"engine":1}}`: `{"nvext":{"engine":1}}`,
		`"}`:                     `"}`,
	} {
		if got := string(x.withExtension([]byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
	for in, want := range map[string]string{
		"data: {\"a\":1}\n\n":                           "data: {" + member + ",\"a\":1}\n\n",
		": hello\r\n\r\nid: 1\r\ndata:{ \"a\":1}\r\n\r": ": hello\r\n\r\nid: 1\r\ndata:{" + member + ", \"a\":1}\r\n\r",
		"data: [DONE]\n\n":                              "data: [DONE]\n\n",
		"data: {}\n\ndata: {\"a\":1}\n\n":               "data: {}\n\ndata: {\"a\":1}\n\n",
		"data: {\"nvext\":1}\n\n":                       "data: {\"nvext\":1}\n\n",
		": hello\n":                                     ": hello\n",
		"":                                              "",
	} {
		if got := string(x.eventWithExtension([]byte(in))); got != want {
			t.Errorf("%q became %q, want %q", in, got, want)
		}
	}
}
