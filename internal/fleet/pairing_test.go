package fleet

import (
	"bytes"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

// logBook keeps what is logged.
type logBook struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *logBook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *logBook) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func (l *logBook) logger() *slog.Logger { return slog.New(slog.NewTextHandler(l, nil)) }

func serveTLS(t *testing.T, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, 0)
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func vllmFacts(names ...string) *Facts {
	f := serves(names...)
	f.Backend = dialectVLLM
	return f
}

const (
	urlP, urlQ = "http://p:1", "http://q:1"
	urlD, urlE = "http://d:1", "http://e:1"
)

// worker registers a worker that is well and says f.
func (b *testbed) worker(url string, role config.WorkerType, f *Facts) *Worker {
	b.t.Helper()
	b.prober.set(well, url)
	b.prober.says(url, f)
	w := b.add(WorkerSpec{URL: url, Type: role})
	synctest.Wait()
	return w
}

func (b *testbed) wantGroup(w *Worker, want string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if got := w.Ranks()[0].facts.PairGroup; got != want {
		b.t.Errorf("group of %s is %q, want %q", w.URL(), got, want)
	}
}

func (p *fakeProber) connected(url, connector string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.connects[url], p.mute[url] = connector, err
}

// A decode worker has the connector of the prefill workers of its model, whoever
// comes first, and follows when that changes.
func TestDecodeTakesTheConnectorOfPrefill(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		d := b.worker(urlD, config.WorkerDecode, vllmFacts("m"))
		other := b.worker(urlE, config.WorkerDecode, vllmFacts("n"))
		b.wantGroup(d, "vllm/unknown")
		b.prober.connected(urlP, engine.ConnectorNIXL, nil)
		p := b.worker(urlP, config.WorkerPrefill, vllmFacts("m"))
		b.wantGroup(p, "vllm/nixl")
		b.wantGroup(d, "vllm/nixl")
		b.wantGroup(other, "vllm/unknown")
		if d.Ranks()[0].Connector() != engine.ConnectorNIXL {
			t.Errorf("connector %q", d.Connector())
		}
		// Another prefill worker with another one does not change it, but is told.
		b.prober.connected(urlQ, engine.ConnectorMoRIIO, nil)
		q := b.worker(urlQ, config.WorkerPrefill, vllmFacts("m"))
		b.wantGroup(d, "vllm/nixl")
		if notes := q.Info().Pairing; len(notes) != 1 || !strings.Contains(notes[0], "uses vllm/moriio, they use vllm/nixl") {
			t.Errorf("notes of q %q", notes)
		}
		if notes := d.Info().Pairing; len(notes) != 1 || !strings.Contains(notes[0], "set its kv_connector") {
			t.Errorf("notes of d %q", notes)
		}
		b.Remove(urlP)
		b.pass(time.Second)
		b.wantGroup(d, "vllm/moriio")
		if notes := append(d.Info().Pairing, q.Info().Pairing...); len(notes) > 0 {
			t.Errorf("notes %q", notes)
		}
	})
}

// Ends that do not match are never paired, and that is said once.
func TestEndsThatDoNotMatch(t *testing.T) {
	for _, tc := range []struct {
		name   string
		p, d   WorkerSpec
		pf, df *Facts
		match  bool
	}{
		{"alike", WorkerSpec{KVConnector: "mooncake"}, WorkerSpec{KVConnector: "MooncakeConnector"}, vllmFacts("m"), vllmFacts("m"), true},
		{"connectors", WorkerSpec{KVConnector: "lmcache"}, WorkerSpec{KVConnector: "nixl"}, vllmFacts("m"), vllmFacts("m"), false},
		{"dialects", WorkerSpec{}, WorkerSpec{Backend: "vllm"}, serves("m"), vllmFacts("m"), false},
		{"form of the cache", WorkerSpec{KVConnector: "nixl"}, WorkerSpec{KVConnector: "nixl"},
			&Facts{Facts: engine.Facts{Models: []ModelInfo{{ID: "m"}}, Backend: dialectVLLM, CacheType: "fp8"}}, vllmFacts("m"), false},
		{"auto is the model's own", WorkerSpec{KVConnector: "nixl"}, WorkerSpec{KVConnector: "nixl"},
			&Facts{Facts: engine.Facts{Models: []ModelInfo{{ID: "m"}}, Backend: dialectVLLM, CacheType: "bfloat16"}}, vllmFacts("m"), true},
		{"both SGLang", WorkerSpec{}, WorkerSpec{}, serves("m"), serves("m"), true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := &logBook{}
			inBubble(t, settings{Log: log.logger()}, func(b *testbed) {
				b.prober.set(well, urlP, urlD)
				b.prober.says(urlP, tc.pf)
				b.prober.says(urlD, tc.df)
				b.prober.moon[urlP] = &engine.MooncakePeer{EngineIDs: []string{"e"}}
				tc.p.URL, tc.p.Type, tc.d.URL, tc.d.Type = urlP, config.WorkerPrefill, urlD, config.WorkerDecode
				p, d := b.add(tc.p), b.add(tc.d)
				b.pass(2 * factsInterval)
				b.wantCandidates(urlD, urlP)
				if got := b.pair("m") != nil; got != tc.match {
					t.Errorf("paired: %t", got)
				}
				notes := append(p.Info().Pairing, d.Info().Pairing...)
				if want := map[bool]int{true: 0, false: 2}[tc.match]; len(notes) != want {
					t.Errorf("notes %q", notes)
				}
				if n := strings.Count(log.String(), "cannot be paired"); n != len(notes) {
					t.Errorf("said %d times:\n%s", n, log)
				}
			})
		})
	}
}

// pair is granted a pair, or nil when there is none.
func (b *testbed) pair(model string) *admission.Ticket {
	b.t.Helper()
	target := b.gate.Resolve(admission.TargetSpec{Model: b.Pool(model), Shape: admission.Disaggregated})
	if target == nil {
		return nil
	}
	t := &admission.Ticket{Target: target}
	if err := b.gate.Acquire(b.t.Context(), t); err != nil {
		return nil
	}
	t.Close()
	return t
}

// With a pair label only workers with the same value of it are paired, those without it
// with each other, and the connector is that of the own generation.
func TestPairLabelKeepsGenerationsApart(t *testing.T) {
	generation := func(url string, role config.WorkerType, g string) WorkerSpec {
		spec := WorkerSpec{URL: url, Type: role, Labels: map[string]string{"other": "x"}}
		if g != "" {
			spec.Labels["gen"] = g
		}
		return spec
	}
	for _, tc := range []struct {
		label      config.LabelKey
		p, q, d, e string // the generations
		want       map[string]bool
	}{
		{"gen", "1", "2", "1", "2", map[string]bool{"pd": true, "qe": true}},
		{"gen", "", "2", "", "2", map[string]bool{"pd": true, "qe": true}},
		{"gen", "1", "2", "2", "2", map[string]bool{"qd": true, "qe": true}},
		{"gen", "1", "1", "2", "2", nil},
		{"", "1", "2", "1", "2", map[string]bool{"pd": true, "pe": true, "qd": true, "qe": true}},
	} {
		inBubble(t, settings{PairLabel: tc.label}, func(b *testbed) {
			b.prober.set(well, urlP, urlQ, urlD, urlE)
			for _, url := range []string{urlP, urlQ, urlD, urlE} {
				b.prober.says(url, vllmFacts("m"))
			}
			b.prober.connected(urlP, engine.ConnectorNIXL, nil)
			b.prober.connected(urlQ, engine.ConnectorNIXL, nil)
			b.add(generation(urlP, config.WorkerPrefill, tc.p))
			b.add(generation(urlQ, config.WorkerPrefill, tc.q))
			b.add(generation(urlD, config.WorkerDecode, tc.d))
			e := b.add(generation(urlE, config.WorkerDecode, tc.e))
			b.pass(2 * factsInterval)
			got := b.pairsOf(60)
			if len(got) != len(tc.want) {
				t.Errorf("%+v: pairs %v", tc, got)
			}
			for pair := range got {
				if !tc.want[pair] {
					t.Errorf("%+v: pairs %v", tc, got)
				}
			}
			if notes := e.Info().Pairing; tc.want == nil && (len(notes) != 1 || !strings.Contains(notes[0], "it uses vllm/unknown with gen=2, they use vllm/nixl with gen=1") || !strings.Contains(notes[0], "the same label gen")) {
				t.Errorf("notes %q", notes)
			}
			// A label that changes takes effect at once.
			b.add(generation(urlE, config.WorkerDecode, tc.p))
			synctest.Wait()
			if got := b.pairsOf(60); got["pe"] == 0 || got["qe"] > 0 && tc.label != "" && tc.q != tc.p {
				t.Errorf("%+v: pairs %v after the label has changed", tc, got)
			}
		})
	}
}

// Where nothing but the pair label differs, the note asks for nothing else.
func TestPairingNoteNamesWhatDiffers(t *testing.T) {
	inBubble(t, settings{PairLabel: "gen"}, func(b *testbed) {
		b.prober.set(well, urlP, urlD)
		b.prober.says(urlP, serves("m"))
		b.prober.says(urlD, serves("m"))
		b.add(WorkerSpec{URL: urlP, Type: config.WorkerPrefill, BootstrapPort: 7, Labels: map[string]string{"gen": "1"}})
		d := b.add(WorkerSpec{URL: urlD, Type: config.WorkerDecode})
		synctest.Wait()
		if notes := d.Info().Pairing; len(notes) != 1 || !strings.HasSuffix(notes[0], "they use sglang with gen=1; workers are paired only with the same label gen") {
			t.Errorf("notes %q", notes)
		}
	})
}

// A prefill worker whose bootstrap port is to be found out gets no work through
// the default one while its /server_info is slow.
func TestPrefillWaitsForItsBootstrapPort(t *testing.T) {
	lost := func() *Facts {
		f := serves("m")
		f.Incomplete, f.InfoLost = true, true
		return f
	}
	inBubble(t, settings{}, func(b *testbed) {
		b.worker(urlD, config.WorkerDecode, serves("m"))
		p := b.worker(urlP, config.WorkerPrefill, lost())
		b.wantCandidates(urlD)
		if p.Status() != StatusPending {
			t.Errorf("status %s", p.Status())
		}
		told := serves("m")
		told.BootstrapPort = 9001
		b.prober.says(urlP, told)
		b.pass(2 * firstRetry)
		b.wantCandidates(urlD, urlP)
		if _, port, _ := p.Bootstrap(); port != 9001 || p.Status() != StatusReady {
			t.Errorf("port %d, status %s", port, p.Status())
		}
		// One that never tells is used after some tries.
		b.worker(urlQ, config.WorkerPrefill, lost())
		b.wantCandidates(urlD, urlP)
		b.pass(5 * firstRetry)
		b.wantCandidates(urlD, urlP, urlQ)
	})
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.set(well, urlP)
		b.prober.says(urlP, lost())
		b.add(WorkerSpec{URL: urlP, Type: config.WorkerPrefill, BootstrapPort: 7, Backend: dialectSGLang})
		synctest.Wait()
		b.wantCandidates(urlP) // nothing is to be found out
	})
}

// A vLLM prefill worker that does not answer the question for its connector is
// asked a few times, then used as it is, and asked again much later only.
func TestConnectorIsAskedForWithinBounds(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.prober.connected(urlP, "", errors.New("no answer"))
		p := b.worker(urlP, config.WorkerPrefill, vllmFacts("m"))
		b.wantCandidates()
		b.pass(time.Minute)
		b.wantCandidates(urlP)
		if p.Connector() != engine.ConnectorUnknown || len(p.Info().Warnings) != 1 {
			t.Errorf("connector %q, warnings %q", p.Connector(), p.Info().Warnings)
		}
		if n := b.prober.probes(urlP); n != 3 {
			t.Errorf("asked %d times", n)
		}
		b.prober.connected(urlP, engine.ConnectorNIXL, nil)
		b.pass(2 * factsInterval)
		if n := b.prober.probes(urlP); p.Connector() != engine.ConnectorNIXL || n != 4 {
			t.Errorf("connector %q, asked %d times", p.Connector(), n)
		}
		// One that was away may be another, and is asked once.
		b.prober.set(vanished, urlP)
		b.pass(time.Minute)
		b.prober.connected(urlP, engine.ConnectorMoRIIO, nil)
		b.prober.set(well, urlP)
		b.pass(time.Minute)
		if n := b.prober.probes(urlP); p.Connector() != engine.ConnectorMoRIIO || n != 5 {
			t.Errorf("connector %q, asked %d times", p.Connector(), n)
		}
	})
}

func (p *fakeProber) probes(url string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.probed[url]
}

// Facts that tell nothing new leave the table of names as it is: reading those of
// a thousand workers again costs no thousand tables.
func TestUnchangedFactsAreCheap(t *testing.T) {
	inBubble(t, settings{}, func(b *testbed) {
		b.worker(urlA, config.WorkerRegular, serves("m"))
		before := b.names.Load()
		again := serves("m")
		again.Models[0].Created = 7
		b.prober.says(urlA, again)
		b.pass(3 * factsInterval)
		if b.names.Load() != before {
			t.Error("the table is made anew")
		}
		b.prober.says(urlA, serves("n"))
		b.pass(2 * factsInterval)
		if b.names.Load() == before || b.Pool("n") != "n" {
			t.Error("what is new is not taken over")
		}
	})
}

func TestOddSettingsAreTold(t *testing.T) {
	for _, tc := range []struct {
		spec WorkerSpec
		says *Facts
		want string
	}{
		{WorkerSpec{Labels: map[string]string{"kv_connector": "fax"}}, vllmFacts("m"), `kv_connector="fax" is not the name of a connector`},
		{WorkerSpec{KVConnector: "nixl"}, serves("m"), "it speaks sglang and has none"},
		{WorkerSpec{KVConnector: "mooncake"}, vllmFacts("m"), "set dp_aware"},
		{WorkerSpec{Labels: map[string]string{"backend": "vllm", "kv_connector": "NixlConnector"}}, serves("m"), ""},
	} {
		inBubble(t, settings{}, func(b *testbed) {
			b.prober.set(well, urlP)
			b.prober.says(urlP, tc.says)
			b.prober.connected(urlP, engine.ConnectorNIXL, nil)
			b.prober.moon[urlP] = &engine.MooncakePeer{EngineIDs: []string{"e_dp0", "e_dp1"}}
			tc.spec.URL, tc.spec.Type = urlP, config.WorkerPrefill
			w := b.add(tc.spec)
			synctest.Wait()
			got := strings.Join(w.Info().Warnings, "\n")
			if tc.want == "" && got != "" || !strings.Contains(got, tc.want) {
				t.Errorf("warnings %q, want %q", got, tc.want)
			}
		})
	}
}
