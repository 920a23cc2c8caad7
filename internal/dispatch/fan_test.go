package dispatch

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

// Several samples that share one room wait for each other until the engine's
// limit (sgl-project/sglang#26486): each has its own, and the client still sees
// one answer.
func TestSamplesHaveRoomsOfTheirOwn(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{limits: admission.Limits{PrefillSlots: 1, QueueSize: 10}}))
	type answered struct {
		Choices []struct{ Index int }
		Usage   map[string]any
	}
	var got answered
	a := r.chat(`,"n":3,"seed":7`)
	if a.status != 200 || json.Unmarshal([]byte(a.body), &got) != nil {
		t.Fatalf("%d %s", a.status, a.body)
	}
	if len(got.Choices) != 3 || got.Choices[0].Index != 0 || got.Choices[2].Index != 2 {
		t.Errorf("choices: %s", a.body)
	}
	if got.Usage["completion_tokens"] != 9.0 {
		t.Errorf("usage: %v", got.Usage)
	}
	rooms, seeds := map[int64]bool{}, map[string]bool{}
	for _, req := range r.sim.Decode(0).Requests() {
		rooms[req.Rooms[0]] = true
		var body struct{ Seed json.Number }
		_ = json.Unmarshal(req.Body, &body)
		seeds[body.Seed.String()] = true
	}
	if len(rooms) != 3 || len(seeds) != 3 || !seeds["7"] || !seeds["9"] {
		t.Errorf("rooms %v, seeds %v", rooms, seeds)
	}
	// A batch of two prompts with two samples each: two calls with two rooms.
	got = answered{}
	a = r.do(t.Context(), "/v1/completions", `{"prompt":["a","b"],"n":2,"max_tokens":2}`)
	if a.status != 200 || json.Unmarshal([]byte(a.body), &got) != nil || len(got.Choices) != 4 || got.Choices[3].Index != 3 {
		t.Errorf("batch: %d %s", a.status, a.body)
	}
	r.idle()
	r.noViolations()
}

func TestSamplesStreamAsOne(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{}))
	a := r.chat(`,"n":2,"stream":true,"stream_options":{"include_usage":true}`)
	if a.status != 200 || a.err != nil {
		t.Fatalf("%d %v %s", a.status, a.err, a.body)
	}
	if n := strings.Count(a.body, "data: [DONE]"); n != 1 || !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
		t.Errorf("%d end markers: %s", n, a.body)
	}
	if strings.Count(a.body, `"index":0`) == 0 || strings.Count(a.body, `"index":1`) == 0 || strings.Count(a.body, `"completion_tokens":6`) != 1 {
		t.Error(a.body)
	}
	if rec := r.waitRecord(0); rec.Usage.CompletionTokens != 6 {
		t.Errorf("usage recorded: %+v", rec.Usage)
	}
	r.idle()
	r.noViolations()
}

// One copy that fails ends them all, with its own words.
func TestOneSampleFails(t *testing.T) {
	t.Parallel()
	prefill := func(r *rig) *sim.Worker { return r.sim.Prefill(0) }
	decode := func(r *rig) *sim.Worker { return r.sim.Decode(0) }
	for _, tc := range []struct {
		worker func(*rig) *sim.Worker
		extra  string
	}{
		{prefill, `,"n":3`}, {decode, `,"n":3`}, {decode, `,"n":3,"stream":true`},
	} {
		// A fleet each: what is left of a cancelled sample may reach its engine late,
		// and would take the next case's fault.
		r := newRig(t, pd(rigOptions{}))
		w := tc.worker(r)
		w.SetFault(sim.Fault{Status: 422, Body: `{"object":"error","message":"no"}`, Skip: 1, Count: 1})
		// A streamed answer may have begun with another sample's events.
		a := r.chat(tc.extra)
		told := a.status == 422 && a.body == `{"object":"error","message":"no"}`
		if a.status == 200 && strings.Contains(tc.extra, "stream") {
			told = a.err != nil && strings.HasSuffix(a.body, "data: {\"object\":\"error\",\"message\":\"no\"}\n\n")
		}
		if !told {
			t.Errorf("%s %s: %d %s", w.ID(), tc.extra, a.status, a.body)
		}
		r.idle()
	}
}
