package dispatch

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// Workers refused every request of a router that sent them no room
// (volcano-sh/kthena#865): both legs carry the same three fields.
func TestBothLegsCarryTheSameRoom(t *testing.T) {
	t.Parallel()
	r := newRig(t, pd(rigOptions{}))
	if a := r.chat(""); a.status != 200 {
		t.Fatalf("%d %s", a.status, a.body)
	}
	r.idle()
	type meeting struct {
		Host string      `json:"bootstrap_host"`
		Port json.Number `json:"bootstrap_port"`
		Room json.Number `json:"bootstrap_room"`
	}
	var legs [2]meeting
	for i, w := range []*sim.Worker{r.sim.Prefill(0), r.sim.Decode(0)} {
		if err := json.Unmarshal(w.Requests()[0].Body, &legs[i]); err != nil {
			t.Fatal(err)
		}
	}
	if legs[0] != legs[1] || legs[0].Host == "" || legs[0].Port == "" || legs[0].Room == "" {
		t.Errorf("prefill was sent %+v, decode %+v", legs[0], legs[1])
	}
	r.noViolations()
}

// A body that was unpacked but still labelled as packed broke clients
// (vllm-project/production-stack#836). Nothing is unpacked here: bytes and label
// pass together, and engines are not asked to pack.
func TestBodyAndLabelAgree(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}})
	packed := "\x1f\x8b packed bytes"
	r.sim.Regular(0).SetFault(sim.Fault{Status: 200, Body: packed, Header: http.Header{"Content-Encoding": {"gzip"}}})
	a := r.chat("", "Accept-Encoding", "gzip")
	if a.status != 200 || a.body != packed || a.header.Get("Content-Encoding") != "gzip" {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
	r.idle()
	for _, req := range r.sim.Regular(0).Requests() {
		if v := req.Header.Get("Accept-Encoding"); v != "" {
			t.Errorf("the engine was asked for %q", v)
		}
	}
}

// Many streams at once on workers that accept slowly tripped breakers though the
// workers were alive (sgl-project/sglang#13894).
func TestSlowAcceptTripsNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 2}, breaker: firstFault})
	for i := range 2 {
		r.sim.Regular(i).SetFault(sim.Fault{AcceptDelay: 200 * time.Millisecond})
	}
	const crowd = 300
	var wg sync.WaitGroup
	var mu sync.Mutex
	bad := map[int]int{}
	for range crowd {
		wg.Go(func() {
			if a := r.chat(streamed); a.status != 200 || a.err != nil || !strings.HasSuffix(a.body, "[DONE]\n\n") {
				mu.Lock()
				bad[a.status]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if len(bad) > 0 {
		t.Errorf("not served, by status: %v", bad)
	}
	r.settled()
	r.charged()
}
