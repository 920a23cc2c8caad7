package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// What another router sends to the same workers is in what their engines report: a class
// with a decode fraction waits for it, in front of prefill, and starts when it is gone.
func TestTrafficPastThisRouter(t *testing.T) {
	t.Parallel()
	for _, backend := range []string{"sglang", "vllm"} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, append([]string{"--decode-step", "1h", "--backend", backend}, smallKV...)...)
			file := filepath.Join(t.TempDir(), "classes.yaml")
			if err := os.WriteFile(file, []byte(twoClasses), 0o600); err != nil {
				t.Fatal(err)
			}
			r := startRouter(t, fleet, "--router-policy-config", file, "--reserve-output-tokens", "0", "--load-monitor-interval", "0.2")
			other := startRouter(t, fleet)
			full := other.complete(t, 400, 2) // its second token never comes
			r.waitGate("load that is not booked", func(d gateDoc) bool {
				return d.unbooked() == 40 || d.unbooked() == 41 // with the block of its first token
			})
			waits := r.complete(t, 200, 1)
			d := r.waitGate("one that waits", func(d gateDoc) bool { return d.Waiting == 1 })
			if c := d.Queues[0].Classes[0]; c.ClosedBy != "decode_blocks" || d.decodeBlocks() != 0 {
				t.Errorf("class %+v, booked %d", c, d.decodeBlocks())
			}
			if n := r.metric("sluice_admission_decode_blocks_drift"); n < 40 {
				t.Errorf("the drift is %g", n)
			}
			full.cancel()
			waits.wait(t).good(t)
			r.waitGate("nothing that is not booked", func(d gateDoc) bool { return d.unbooked() == 0 })
			r.idle()
		})
	}
}

// Requests that wait inside an engine keep others off it, with a reason of its own, until
// its report is gone: an engine that is not asked any more is judged by the bookings.
func TestEngineThatReportsWaitingRequests(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--regular", "1", "--prefill", "0", "--decode", "0", "--max-running", "1", "--decode-step", "1h")
	r := startRouter(t, fleet, "--load-monitor-interval", "0.2", "--worker-overload-waiting-requests", "2")
	engine := fleet.worker("regular-0").URL
	var direct []*call
	for range 3 { // one runs, two wait
		direct = append(direct, send(clients(t), "POST", engine+"/v1/completions", promptOf(10, 2)))
	}
	r.waitGate("a veto", func(d gateDoc) bool { return d.Ranks[0].Vetoed })
	r.complete(t, 10, 1, "X-Sluice-Max-Queue-Ms", "1").wait(t).refused(t, 429, "queue_deadline_exceeded")
	waits := r.complete(t, 10, 1)
	d := r.waitGate("one that waits", func(d gateDoc) bool { return d.Waiting == 1 })
	if c := d.Queues[0].Classes[0]; c.ClosedBy != "reported_load" {
		t.Errorf("class %+v", c)
	}
	fleet.fault("regular-0", "path=/v1/loads,status=404")
	r.waitGate("the end of an old report", func(d gateDoc) bool { return d.Waiting == 0 && !d.Ranks[0].Vetoed })
	for _, c := range direct {
		c.cancel()
	}
	waits.wait(t).good(t)
	eventually(t, "a warning", func() string {
		if _, body := r.get("/workers"); !strings.Contains(body, "does not report its load (/v1/loads)") {
			return clip(body)
		}
		return ""
	})
	if n := r.metric("sluice_worker_load_unknown"); n != 1 {
		t.Errorf("sluice_worker_load_unknown is %g", n)
	}
	fleet.heal("regular-0")
	r.idle()
}

// unbooked are the blocks that engines of decode report beyond the bookings.
func (d gateDoc) unbooked() (n int64) {
	for _, k := range d.Ranks {
		if k.Role == "decode" {
			n += k.Unbooked
		}
	}
	return n
}
