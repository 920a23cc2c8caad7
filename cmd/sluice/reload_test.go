package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// classFile is a class file with a decode fraction; extra are further lines.
func classFile(decodeFrac string, extra string) string {
	return `
default_policy_family: normal
uncached_isl_buckets: [{min_tokens: 0, bucket: all}]
policy_classes:
  - {name: normal, policy_family: normal, cache_bucket: all, quantum: 100, decode_busy_threshold_frac: ` + decodeFrac + `}
` + extra
}

const wholesale = "  - {name: wholesale, quantum: 50}\n"

// gateState is what GET /admission tells, as far as these tests look.
type gateState struct {
	Limits struct {
		Slots     int   `json:"prefill_max_inflight_requests_per_worker"`
		QueueSize int   `json:"queue_size"`
		TimeoutMS int64 `json:"queue_timeout_ms"`
	} `json:"limits"`
	Thresholds map[string]any `json:"busy_thresholds"`
	Waiting    int            `json:"waiting"`
	Queues     []struct {
		Classes []struct {
			Class    string `json:"class"`
			Depth    int    `json:"depth"`
			OldestMS int64  `json:"oldest_wait_ms"`
			ClosedBy string `json:"closed_by"`
		} `json:"classes"`
	} `json:"queues"`
	Ranks []struct {
		Role     string `json:"role"`
		Pending  int64  `json:"decode_blocks_pending"`
		Active   int64  `json:"decode_blocks_active"`
		Capacity struct {
			Blocks int64 `json:"total_kv_blocks"`
		} `json:"capacity"`
	} `json:"ranks"`
	Reload struct {
		Generation int    `json:"generation"`
		Trigger    string `json:"trigger"`
		Error      string `json:"error"`
	} `json:"reload"`
}

func (p *process) gate() (s gateState) {
	p.t.Helper()
	status, body := p.get("/admission")
	if err := json.Unmarshal([]byte(body), &s); err != nil || status != 200 {
		p.t.Fatalf("status %d, %v: %s", status, err, body)
	}
	return s
}

func (s gateState) classes() string {
	var names []string
	for _, q := range s.Queues {
		for _, c := range q.Classes {
			names = append(names, c.Class)
		}
	}
	return strings.Join(names, " ")
}

func (p *process) until(what string, so func(gateState) bool) gateState {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		s := p.gate()
		if so(s) {
			return s
		}
		if time.Now().After(end) {
			p.t.Fatalf("waited in vain for %s: %+v", what, s)
		}
	}
}

func (p *process) post(path, body string) (int, string) {
	p.t.Helper()
	resp, err := http.Post("http://"+p.address+path, "application/json", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }() // only read
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		p.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// ask sends a request in the background; its status comes when it is over.
func (p *process) ask(ctx context.Context, tokens, output int, headers ...string) <-chan int {
	p.t.Helper()
	ids := strings.TrimSuffix(strings.Repeat("7,", tokens), ",")
	body := fmt.Sprintf(`{"model":"sim-model","prompt":[%s],"max_tokens":%d}`, ids, output)
	req, err := http.NewRequestWithContext(ctx, "POST", "http://"+p.address+"/v1/completions", strings.NewReader(body))
	if err != nil {
		p.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Set(headers[i], headers[i+1])
	}
	over := make(chan int, 1)
	go func() {
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			over <- 0
			return
		}
		_, _ = io.Copy(io.Discard, resp.Body) // its status is enough
		_ = resp.Body.Close()
		over <- resp.StatusCode
	}()
	return over
}

func (p *process) status(over <-chan int, want int) {
	p.t.Helper()
	select {
	case got := <-over:
		if got != want {
			p.t.Errorf("status %d, want %d", got, want)
		}
	case <-time.After(patience):
		p.t.Fatal("a request has no answer")
	}
}

// classFleet is a pair of workers with 100 KV blocks of 10 tokens, of which decode
// gives a first token and then no more.
func classFleet(t *testing.T) *sim.Fleet {
	t.Helper()
	return workers(t, sim.Options{Prefill: 1, Decode: 1, Worker: sim.WorkerOptions{
		KVTokens: 1000, PageSize: 10, Timing: sim.Timing{DecodeStep: time.Hour},
	}})
}

func serveClasses(t *testing.T, f *sim.Fleet, args ...string) *process {
	t.Helper()
	p := serve(t, append([]string{"--pd-disaggregation", "--reserve-output-tokens", "0", "--prefill", f.Prefill(0).URL(), fmt.Sprint(f.Prefill(0).BootstrapPort()), "--decode", f.Decode(0).URL()}, args...)...)
	p.ready()
	p.until("capacities", func(s gateState) bool {
		return len(s.Ranks) == 2 && s.Ranks[0].Capacity.Blocks > 0 && s.Ranks[1].Capacity.Blocks > 0
	})
	return p
}

// A class file that is changed takes effect as a whole, by order, by signal or by
// itself; one that is broken changes nothing and is shown; those who wait keep
// their place, and those who run run on.
func TestReloadOfClasses(t *testing.T) {
	f := classFleet(t)
	file := t.TempDir() + "/classes.yaml"
	write(t, file, classFile("0.5", wholesale))
	p := serveClasses(t, f, "--router-policy-config", file)
	if s := p.gate(); s.classes() != "normal wholesale" || s.Reload.Generation != 1 {
		t.Fatalf("at the start %+v", s)
	}
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	running := p.ask(ctx, 400, 2) // 40 of 50 blocks
	p.until("one that runs", func(s gateState) bool {
		return s.Ranks[0].Pending+s.Ranks[0].Active+s.Ranks[1].Pending+s.Ranks[1].Active == 40
	})
	waiting := p.ask(t.Context(), 200, 1, "X-Sluice-Class", "normal")
	before := p.until("one that waits", func(s gateState) bool { return s.Waiting == 1 && s.Queues[0].Classes[0].OldestMS > 0 })

	// Broken: by order.
	write(t, file, strings.Replace(classFile("0.5", wholesale), "quantum: 50", "quantum: 0", 1))
	status, body := p.post("/admission/reload", "")
	if status != 400 || !strings.Contains(body, "policy_classes[1].quantum") {
		t.Errorf("status %d: %s", status, body)
	}
	s := p.gate()
	if s.Reload.Generation != 1 || !strings.Contains(s.Reload.Error, "policy_classes[1].quantum") || s.classes() != "normal wholesale" || s.Waiting != 1 {
		t.Errorf("after a broken file %+v", s)
	}
	p.line("last good configuration stays")

	// A lower fraction closes the gate and breaks nothing: by signal. The class
	// that nobody waits in is gone.
	write(t, file, classFile("0.3", ""))
	p.signal(syscall.SIGHUP)
	s = p.until("the second generation", func(s gateState) bool { return s.Reload.Generation == 2 })
	// On a busy machine the watch of the file may be there before the signal.
	bySignal := s.Reload.Trigger == "signal" || s.Reload.Trigger == "file"
	if s.Reload.Error != "" || !bySignal || s.classes() != "normal" || s.Waiting != 1 {
		t.Errorf("after a lower fraction %+v", s)
	}
	if got := s.Queues[0].Classes[0]; got.OldestMS < before.Queues[0].Classes[0].OldestMS || got.ClosedBy != "decode_blocks" {
		t.Errorf("who waits lost its place: %+v", got)
	}
	select {
	case got := <-running:
		t.Errorf("the one that ran was ended with status %d", got)
	default:
	}

	// A higher one lets it in at once, found by looking at the file.
	write(t, file, classFile("0.9", wholesale))
	p.status(waiting, 200)
	s = p.until("the third generation", func(s gateState) bool { return s.Reload.Generation == 3 })
	if s.Reload.Trigger != "file" || s.classes() != "normal wholesale" {
		t.Errorf("after the file has changed %+v", s)
	}
	leave()
	<-running
	p.until("nothing held", func(s gateState) bool {
		return s.Ranks[0].Pending+s.Ranks[0].Active+s.Ranks[1].Pending+s.Ranks[1].Active == 0
	})
	// The file is gone: the last good classes stay.
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if status, body := p.post("/admission/reload", ""); status != 400 {
		t.Errorf("without a file: status %d: %s", status, body)
	}
	p.status(p.ask(t.Context(), 10, 1, "X-Sluice-Class", "wholesale"), 200)
	p.signal(syscall.SIGTERM)
	if code := p.ended(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}

// A class that is gone hands those who wait in it to the default family, with the
// time that they have waited.
func TestReloadOfAClassWithWaitingRequests(t *testing.T) {
	f := classFleet(t)
	file := t.TempDir() + "/classes.yaml"
	closing := "  - {name: closing, quantum: 50, decode_busy_threshold_frac: 0.5}\n"
	write(t, file, classFile("0.9", closing))
	p := serveClasses(t, f, "--router-policy-config", file)
	ctx, leave := context.WithCancel(t.Context())
	defer leave()
	running := p.ask(ctx, 400, 2)
	p.until("one that runs", func(s gateState) bool { return s.Ranks[0].Active+s.Ranks[1].Active == 40 })
	waiting := p.ask(t.Context(), 200, 1, "X-Sluice-Class", "closing")
	p.until("one that waits", func(s gateState) bool { return s.Waiting == 1 })
	write(t, file, classFile("0.9", ""))
	if status, body := p.post("/admission/reload", ""); status != 200 {
		t.Errorf("status %d: %s", status, body)
	}
	p.status(waiting, 200) // normal has room up to nine tenths
	leave()
	<-running
}

// The limits of the gate and the reject thresholds change with the file too; a
// setting that needs a restart is said to.
func TestReloadOfLimits(t *testing.T) {
	f := classFleet(t)
	file := t.TempDir() + "/sluice.yaml"
	write(t, file, "admission: {prefill_max_inflight_requests_per_worker: 1, prefill_queue_size: 5}\n")
	p := serveClasses(t, f, "--config", file)
	if s := p.gate(); s.Limits.Slots != 1 || s.Limits.QueueSize != 5 || s.Limits.TimeoutMS != 60000 {
		t.Errorf("at the start %+v", s.Limits)
	}
	write(t, file, `
admission: {prefill_max_inflight_requests_per_worker: 3, prefill_queue_size: 7, active_decode_blocks_threshold: 0.25}
fleet: {model_id: other}
`)
	status, body := p.post("/admission/reload", "")
	if status != 200 || !strings.Contains(body, "fleet.model_id") || !strings.Contains(body, "restart") {
		t.Errorf("status %d: %s", status, body)
	}
	s := p.gate()
	if s.Limits.Slots != 3 || s.Limits.QueueSize != 7 || s.Thresholds["active_decode_blocks_threshold"] != 0.25 {
		t.Errorf("after the reload %+v", s)
	}
	// What was set by hand lasts until the file says something else.
	if status, body := p.post("/busy_threshold", `{"active_decode_blocks_threshold":0.75}`); status != 200 {
		t.Errorf("status %d: %s", status, body)
	}
	if status, _ := p.post("/admission/reload", ""); status != 200 {
		t.Errorf("status %d", status)
	}
	if s := p.gate(); s.Thresholds["active_decode_blocks_threshold"] != 0.75 {
		t.Errorf("a reload of nothing changed the threshold: %+v", s.Thresholds)
	}
}

// The class file that the documentation shows is one.
func TestDocumentedClassFile(t *testing.T) {
	b, err := os.ReadFile("../../docs/classes.md")
	if err != nil {
		t.Fatal(err)
	}
	_, example, _ := strings.Cut(string(b), "```yaml\n")
	example, _, _ = strings.Cut(example, "```")
	file := t.TempDir() + "/classes.yaml"
	write(t, file, example)
	code, stdout, stderr := sluice(t, nil, "check-config", "--router-policy-config", file)
	if code != 0 || strings.Contains(stderr, "warning") {
		t.Errorf("exit %d: %s %s", code, stdout, stderr)
	}
}

// listed are the URLs of the workers in GET /workers with their status.
func (p *process) listed() map[string]string {
	p.t.Helper()
	var list struct {
		Workers []struct {
			URL    string `json:"url"`
			Status string `json:"status"`
			Source string `json:"source"`
		} `json:"workers"`
		Sources []struct {
			Name  string `json:"name"`
			State string `json:"state"`
		} `json:"sources"`
	}
	status, body := p.get("/workers")
	if err := json.Unmarshal([]byte(body), &list); err != nil || status != 200 {
		p.t.Fatalf("status %d, %v: %s", status, err, body)
	}
	all := map[string]string{}
	for _, w := range list.Workers {
		all[w.URL] = w.Source + " " + w.Status
	}
	for _, s := range list.Sources {
		all["source "+s.Name] = s.State
	}
	return all
}

// untilListed waits until GET /workers has these workers and sources.
func (p *process) untilListed(want map[string]string) {
	p.t.Helper()
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		got := p.listed()
		if maps.Equal(got, want) {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("listed %v, want %v", got, want)
		}
	}
}

func TestReloadOfWorkers(t *testing.T) {
	f := workers(t, sim.Options{Regular: 3})
	urls := []string{f.Regular(0).URL(), f.Regular(1).URL(), f.Regular(2).URL()}
	file := t.TempDir() + "/config.yaml"
	list := func(urls ...string) {
		text := "workers:\n"
		for _, u := range urls {
			text += "  - url: " + u + "\n"
		}
		write(t, file, text)
	}
	list(urls[0])
	p := serve(t, "--config", file)
	p.untilListed(map[string]string{urls[0]: "configuration ready", "source configuration": "ok"})

	list(urls[1], urls[2])
	if status, body := p.post("/admission/reload", ""); status != 200 {
		t.Fatalf("status %d: %s", status, body)
	}
	p.untilListed(map[string]string{urls[1]: "configuration ready", urls[2]: "configuration ready", "source configuration": "ok"})

	// A certificate that cannot be read is found before anything is changed.
	write(t, file, "workers:\n  - url: "+urls[0]+"\n  - url: https://127.0.0.1:1\n    tls: {ca_file: /nowhere.pem}\n")
	if status, body := p.post("/admission/reload", ""); status == 200 || !strings.Contains(body, "nowhere.pem") {
		t.Errorf("status %d: %s", status, body)
	}
	p.untilListed(map[string]string{urls[1]: "configuration ready", urls[2]: "configuration ready", "source configuration": "failing"})
	list(urls[1], urls[2])
	if status, body := p.post("/admission/reload", ""); status != 200 {
		t.Fatalf("status %d: %s", status, body)
	}
	p.untilListed(map[string]string{urls[1]: "configuration ready", urls[2]: "configuration ready", "source configuration": "ok"})
}
