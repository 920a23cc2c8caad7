package e2e

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// killers are requests that do an engine harm wherever they go, by the fault they
// carry.
var killers = []struct {
	name, fields string
	status       int
}{
	{"kills every connection", `"sim":"reset=body",`, 502},
	{"draws 500", `"sim":"status=500",`, 500},
	{"draws a 400 of 2 MB", `"sim":"status=400,body_size=2097152",`, 400},
}

// One client whose requests fail everywhere must not close the fleet for the
// others. One worker that fails everybody is out soon.
func TestHarmfulRequestsOpenNoBreaker(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--prefill", "2", "--decode", "2")
	// Without a warm-up, in which a worker that comes back gets too few requests to be judged.
	r := startRouter(t, fleet, "--retry-initial-backoff-ms", "1", "--retry-max-backoff-ms", "5", "--worker-warmup-secs", "0")
	client := clients(t)
	harm, plain := 200, 1000

	var wg sync.WaitGroup
	for _, k := range killers {
		for c := range 4 {
			wg.Go(func() {
				for i := c; i < harm; i += 4 {
					if a := r.chat(client, k.fields+brief).wait(t); a.status != k.status {
						t.Errorf("one that %s: %s", k.name, a)
						return
					}
				}
			})
		}
	}
	for c := range 8 {
		wg.Go(func() {
			for i := c; i < plain; i += 8 {
				if a := r.chat(client, brief).wait(t); a.status != http.StatusOK {
					t.Errorf("a plain request beside them: %s", a)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, w := range r.workers() {
		if w.Breaker != "closed" || !w.Healthy {
			t.Errorf("blamed: %+v", w)
		}
	}
	r.idle()

	// The same from each of them alone, with nothing good between.
	for _, k := range killers {
		for range 30 {
			r.chat(client, k.fields+brief).wait(t)
		}
	}
	for _, w := range r.workers() {
		if w.Breaker != "closed" {
			t.Errorf("blamed, with nothing good between: %+v", w)
		}
	}

	// Plain requests earn the retries back that those have spent.
	for range 150 {
		r.ask(brief).good(t)
	}
	for _, fault := range []string{"reset=body", "status=500"} {
		bad := "prefill-1"
		fleet.fault(bad, fault)
		before := fleet.stats(bad).Requests
		for range 40 {
			r.ask(brief).good(t)
		}
		if n := fleet.stats(bad).Requests - before; n == 0 || n > 12 {
			t.Errorf("%s: the worker that fails everybody got %d requests, want 1 to 12", fault, n)
		}
		if w := r.worker(bad); w.Breaker != "open" {
			t.Errorf("%s: %+v", fault, w)
		}
		fleet.heal(bad)
		// A worker that is registered anew begins anew.
		id := r.worker(bad).ID
		r.removeWorker(id)
		eventually(t, "it is gone", func() string {
			for _, x := range r.workers() {
				if x.URL == fleet.worker(bad).URL {
					return fmt.Sprintf("%+v", x)
				}
			}
			return ""
		})
		r.addWorker(bad)
		eventually(t, "it is back", func() string {
			if x := r.worker(bad); !x.Healthy || strings.Contains(x.Status, "pending") {
				return fmt.Sprintf("%+v", x)
			}
			return ""
		})
	}
}

// vLLM tells of a hand-off that broke with the status that any other error has. A
// request that draws it everywhere is no broken hand-off, and takes no pair out of
// service; a decode worker that answers so to everybody is charged for it.
func TestDecodeErrorsAreNotBrokenHandOffs(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--backend", "vllm", "--prefill", "6", "--decode", "2")
	r := startRouter(t, fleet, "--retry-initial-backoff-ms", "1", "--retry-max-backoff-ms", "5")
	client := clients(t)
	for range 60 {
		if a := r.chat(client, `"sim":"on=decode,status=500",`+brief).wait(t); a.status != http.StatusInternalServerError {
			t.Errorf("one that draws 500 in decode: %s", a)
		}
		r.ask(brief).good(t)
	}
	if n := r.metric("sluice_pairs_barred_total"); n != 0 {
		t.Errorf("%v pairs were quarantined for the requests' errors", n)
	}
	if n := r.metric(`sluice_requests_total{route="chat",reason="kv_transfer"`); n > 0 {
		t.Errorf("%v requests are said to have failed by their hand-off", n)
	}
	for _, w := range r.workers() {
		if w.Breaker != "closed" {
			t.Errorf("blamed: %+v", w)
		}
	}

	for range 150 {
		r.ask(brief).good(t)
	}
	const bad = "decode-1"
	fleet.fault(bad, "status=500")
	before := fleet.stats(bad).Requests
	for range 60 {
		r.ask(brief).good(t)
	}
	// Ten failures open its breaker. One counts once its prefill worker has succeeded with the
	// other decode worker; until then that may be the bad one, so that one for each of the six
	// may still be open.
	if n := fleet.stats(bad).Requests - before; n == 0 || n > 10+6 {
		t.Errorf("the decode worker that fails everybody got %d requests, want 1 to 16", n)
	}
	if w := r.worker(bad); w.Breaker != "open" {
		t.Errorf("%+v", w)
	}
}
