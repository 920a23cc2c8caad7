package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// simFleet is a simulated fleet in a process of its own. Workers are named by
// their ids: "prefill-0".
type simFleet struct {
	*process
	admin   string
	workers []simWorker
	// prefillDies: the test ends prefill workers. Decode then complains of a pair
	// whose prefill it cannot find, which nobody could know beforehand.
	prefillDies bool
}

type simWorker struct {
	ID            string    `json:"id"`
	Role          string    `json:"role"`
	URL           string    `json:"url"`
	BootstrapPort int       `json:"bootstrap_port"`
	Running       bool      `json:"running"`
	Stats         sim.Stats `json:"stats"`
}

// startSim starts a fleet with the given arguments of "sluice sim".
func startSim(t testing.TB, args ...string) *simFleet {
	t.Helper()
	f := &simFleet{process: spawn(t, nil, append([]string{"sim", "--json", "--admin", "127.0.0.1:0", "--decode-step", "0s", "--decode-per-request", "0s", "--prefill-rate", "0"}, args...)...)}
	_, ok := f.stdout.wait(patience, f.done, func(line string) bool {
		var v struct {
			simWorker
			Ready bool   `json:"ready"`
			Admin string `json:"admin_url"`
		}
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			t.Fatalf("cannot read %q: %v", line, err)
		}
		if v.ID != "" {
			f.workers = append(f.workers, v.simWorker)
		}
		f.admin = v.Admin
		return v.Ready
	})
	if !ok {
		t.Fatalf("the simulated fleet is not ready: %s", f.stderr.String())
	}
	return f
}

func (f *simFleet) call(method, path, body string, into any) error {
	req, err := http.NewRequest(method, f.admin+path, strings.NewReader(body))
	if err != nil {
		return err
	}
	resp, err := adminClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: %d %s", method, path, resp.StatusCode, b)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(b, into)
}

var adminClient = &http.Client{Timeout: patience, Transport: &http.Transport{MaxIdleConnsPerHost: 4, IdleConnTimeout: time.Second}}

// do is POST /sim/workers/{id}/{what}.
func (f *simFleet) do(id, what, body string) {
	f.t.Helper()
	if what == "kill" && strings.HasPrefix(id, "prefill") {
		f.prefillDies = true
	}
	if err := f.call("POST", "/sim/workers/"+id+"/"+what, body, nil); err != nil {
		f.t.Fatal(err)
	}
}

func (f *simFleet) fault(id, fault string) { f.t.Helper(); f.do(id, "fault", fault) }

func (f *simFleet) heal(id string) {
	f.t.Helper()
	if err := f.call("DELETE", "/sim/workers/"+id+"/fault", "", nil); err != nil {
		f.t.Fatal(err)
	}
}

// worker is the worker with that id as it was at the start: where it is.
func (f *simFleet) worker(id string) simWorker {
	f.t.Helper()
	i := slices.IndexFunc(f.workers, func(w simWorker) bool { return w.ID == id })
	if i < 0 {
		f.t.Fatalf("no simulated worker %s", id)
	}
	return f.workers[i]
}

func (f *simFleet) stats(id string) sim.Stats {
	f.t.Helper()
	var w simWorker
	if err := f.call("GET", "/sim/workers/"+id, "", &w); err != nil {
		f.t.Fatal(err)
	}
	return w.Stats
}

// requests is the request log of a worker, or of "all".
func (f *simFleet) requests(id string) []sim.Request {
	f.t.Helper()
	return f.log(id, "")
}

func (f *simFleet) log(id, query string) []sim.Request {
	f.t.Helper()
	var list struct {
		Requests []sim.Request `json:"requests"`
	}
	if err := f.call("GET", "/sim/workers/"+id+"/requests"+query, "", &list); err != nil {
		f.t.Fatal(err)
	}
	return list.Requests
}

// legs are the entries of a client's request, by the request id it sent; with
// further attempts.
func (f *simFleet) legs(id string) []sim.Request {
	f.t.Helper()
	return slices.DeleteFunc(f.requests("all"), func(r sim.Request) bool {
		got := r.Header.Get("X-Request-Id")
		return got != id && !(strings.HasPrefix(got, "r") && strings.HasSuffix(got, "-"+id))
	})
}

// waitStats waits until a worker's counters are so.
func (f *simFleet) waitStats(id, what string, check func(sim.Stats) bool) {
	f.t.Helper()
	eventually(f.t, id+" "+what, func() string {
		s := f.stats(id)
		if check(s) {
			return ""
		}
		return fmt.Sprintf("%+v", s)
	})
}

// misuse fails the test for what no router may do to an engine.
func (f *simFleet) misuse() {
	f.t.Helper()
	if !f.running() {
		return
	}
	var v struct {
		Violations []sim.Violation `json:"violations"`
	}
	if err := f.call("GET", "/sim/violations", "", &v); err != nil {
		f.t.Error(err)
		return
	}
	for _, v := range v.Violations {
		if v.Kind == sim.UnknownPrefill && f.prefillDies {
			continue
		}
		f.t.Errorf("an engine was misused: %s", v)
	}
}

// flags name the fleet's workers to the router.
func (f *simFleet) flags() []string {
	var out []string
	for _, w := range f.workers {
		switch w.Role {
		case "prefill":
			out = append(out, "--prefill", w.URL)
			if w.BootstrapPort != 0 {
				out = append(out, fmt.Sprint(w.BootstrapPort))
			}
		case "decode":
			out = append(out, "--decode", w.URL)
		default:
			out = append(out, "--worker-urls", w.URL)
		}
	}
	if slices.ContainsFunc(f.workers, func(w simWorker) bool { return w.Role != "regular" }) {
		out = append(out, "--pd-disaggregation")
	}
	return out
}
