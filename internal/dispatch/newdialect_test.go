package dispatch

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// linkDialect is an engine that does not exist, with all that a dialect may have: it is
// recognised by a route of its own, tells facts and load in its own words, and links its
// workers by one of two connectors. The decode leg is told where its prefill worker is.
type linkDialect struct{ fakeDialect }

const aboutPath = "/link/about"

var links = engine.Connectors{
	Of: "Link", Names: []string{"rail", "bus"}, Unknown: "unlinked",
	Spellings:  map[string]string{"rail": "rail", "railconnector": "rail", "bus": "bus"},
	Preference: func(name string) int { return map[string]int{"rail": 2, "bus": 2}[name] },
}

func (linkDialect) Name() string     { return "link" }
func (linkDialect) SignPath() string { return aboutPath }
func (linkDialect) Recognizes(path string, answer engine.Fields) bool {
	return path == aboutPath && answer["links"] != nil
}

func (linkDialect) ReadFacts(q *engine.Inquiry) {
	q.Read(func(answer []byte) error {
		var o engine.Fields
		if err := json.Unmarshal(answer, &o); err != nil {
			return err
		}
		f := q.Facts
		f.Version, f.CacheType = o.Str("links"), o.Str("cache")
		f.ChunkedPrefillSize, f.PageSize, f.MaxTotalTokens, f.MaxRunningRequests = o.Amount("chunk"), o.Num("page"), o.Amount("tokens"), o.Amount("seats")
		return nil
	}, aboutPath)
}

func (linkDialect) AlivePath() string { return "/link/alive" }
func (linkDialect) LoadsPath() string { return "/link/load?short" }
func (linkDialect) ReadLoads(answer []byte) (*engine.Loads, error) {
	var o engine.Fields
	if err := json.Unmarshal(answer, &o); err != nil {
		return nil, err
	}
	return &engine.Loads{Ranks: []engine.RankLoad{{Running: o.Num("busy")}}, Capacities: []engine.RankCapacity{{KVTokens: o.Amount("tokens")}}}, nil
}

func (linkDialect) Connectors() *engine.Connectors { return &links }
func (linkDialect) FindConnector(ctx context.Context, w engine.Probed, f *engine.Facts) (engine.Found, error) {
	status, answer, err := w.Ask(ctx, engine.Question{Method: http.MethodPost, Path: "/link/how", Body: []byte(`{"model":"` + f.Names()[0] + `"}`)})
	if err != nil || status != 200 {
		return engine.Found{}, errors.Join(errors.New("it does not say how"), err)
	}
	return engine.Found{Connector: links.Named(string(answer)), Note: "it hums"}, nil
}

type linkPeer struct{ at string }

func (linkDialect) ReadPeer(ctx context.Context, w engine.Probed, connector string) (engine.Peer, bool, error) {
	if connector != "rail" {
		return nil, false, nil
	}
	status, answer, err := w.Ask(ctx, engine.Question{Path: "/link/at"})
	if err != nil || status != 200 {
		return nil, true, errors.New("its rail has no end")
	}
	return linkPeer{string(answer)}, true, nil
}

func (linkDialect) PairForm(connector string, f *engine.Facts) string {
	return "/" + connector + "/" + f.CacheType
}

func (linkDialect) PairReady(k engine.PairKnowledge) bool { return k.Peer != nil }
func (linkDialect) Warnings(k engine.PairKnowledge) []string {
	return []string{fmt.Sprintf("it has %d seats", k.Facts.MaxRunningRequests)}
}

func (linkDialect) Plan(p *engine.Pair) (engine.Plan, error) {
	peer, ok := p.Prefill.Peer().(linkPeer)
	if !ok {
		return engine.Plan{}, errors.New("its rail has no end")
	}
	return engine.Plan{Shape: engine.Together, RequestID: p.RequestID, Legs: &linkLegs{id: p.NewID(), at: peer.at}}, nil
}

type linkLegs struct{ id, at string }

func (l *linkLegs) EditPrefill(s *openai.Splicer) { s.SetString(openai.FieldTransferID, l.id) }
func (l *linkLegs) EditDecode(s *openai.Splicer, _ []byte) {
	s.SetString(openai.FieldTransferID, l.id+"@"+l.at)
}
func (l *linkLegs) HandOff([]byte) ([]byte, error) { return nil, engine.ErrNoHandOff }
func (l *linkLegs) Dispensable(int) bool           { return false }
func (l *linkLegs) Release()                       {}

// linkEngine is a worker of the dialect. It remembers what its legs were told.
type linkEngine struct {
	*httptest.Server
	mu   sync.Mutex
	told []string // guarded by mu
	asks []string // guarded by mu; paths
}

func newLinkEngine(t *testing.T, at, cache string) *linkEngine {
	e := &linkEngine{}
	e.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		e.mu.Lock()
		e.asks = append(e.asks, r.URL.Path)
		e.mu.Unlock()
		switch r.URL.Path {
		case "/health":
		case "/v1/models":
			_, _ = io.WriteString(w, `{"data":[{"id":"sim-model","owned_by":"somebody","max_model_len":99}]}`)
		case aboutPath:
			_, _ = fmt.Fprintf(w, `{"links":"7.1","chunk":512,"page":16,"tokens":1600,"seats":5,"cache":%q}`, cache)
		case "/link/load":
			_, _ = io.WriteString(w, `{"busy":3,"tokens":3200}`)
		case "/link/how":
			_, _ = io.WriteString(w, "RailConnector")
		case "/link/at":
			_, _ = io.WriteString(w, at)
		case "/v1/completions":
			var in struct {
				Transfer string `json:"transfer_id"`
			}
			_ = json.Unmarshal(body, &in)
			e.mu.Lock()
			e.told = append(e.told, in.Transfer)
			e.mu.Unlock()
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"met","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
		default:
			w.WriteHeader(404)
		}
	}))
	t.Cleanup(e.Close)
	return e
}

func (e *linkEngine) seen() (told, asks []string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return slices.Clone(e.told), slices.Clone(e.asks)
}

// An engine of which nothing outside its dialect knows is recognised, probed, gives
// capacity and load, is paired with those that it can be paired with, and serves. It is
// not the default dialect: the registry has the built-in ones first.
func TestNewDialect(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{pd: true, dialects: engine.NewRegistry(engine.SGLang{}, engine.VLLM{}, linkDialect{})})
	prefill, decode, other := newLinkEngine(t, "berth-4", "c1"), newLinkEngine(t, "", "c1"), newLinkEngine(t, "", "c2")
	add := func(e *linkEngine, typ config.WorkerType) *fleet.Worker {
		w, _, err := r.fleet.Add(t.Context(), fleet.WorkerSpec{URL: e.URL, Type: typ})
		if err != nil {
			t.Fatal(err)
		}
		return w
	}
	d, o, p := add(decode, config.WorkerDecode), add(other, config.WorkerDecode), add(prefill, config.WorkerPrefill)
	r.until("all are candidates", func() bool {
		return r.gate.Candidates(admission.RolePrefill) == 1 && r.gate.Candidates(admission.RoleDecode) == 2 &&
			d.Connector() == "rail" && o.Connector() == "rail"
	})

	i := p.Info()
	if i.Backend != "link" || i.Connector != "rail" || i.Version != "7.1" || i.MaxModelLen != 99 || i.ModelID != "sim-model" ||
		i.BootstrapPort != nil || len(i.MissingRoutes) > 0 || !slices.Equal(i.Warnings, []string{"it has 5 seats", "it hums"}) {
		t.Errorf("info of prefill %+v", i)
	}
	want := admission.Capacity{MaxBatchedTokens: 512, KVBlocks: 200, BlockSize: 16, MaxRunning: 5}
	if c := d.Ranks()[0].Capacity(); c != want {
		t.Errorf("capacity %+v, want %+v", c, want)
	}
	if l, _, ok := d.Ranks()[0].Reported(); !ok || l.Running != 3 {
		t.Errorf("load %+v", l)
	}
	r.until("the one that cannot be paired is told of", func() bool { return len(o.Info().Pairing) == 1 && len(d.Info().Pairing) == 0 })

	for range 3 {
		a := r.do(t.Context(), "/v1/completions", `{"model":"sim-model","prompt":"hi","max_tokens":3}`)
		if a.status != 200 || a.err != nil || answerText(t, a.body) != "met" {
			t.Errorf("%d %v %q", a.status, a.err, a.body)
		}
	}
	r.idle()
	ids, asks := prefill.seen()
	ends, _ := decode.seen()
	for i := range ids {
		ids[i] += "@berth-4"
	}
	slices.Sort(ids)
	slices.Sort(ends)
	if len(ids) != 3 || !slices.Equal(ids, ends) {
		t.Errorf("prefill was told %q, decode %q", ids, ends)
	}
	if strange, _ := other.seen(); len(strange) > 0 {
		t.Errorf("the one that cannot be paired was sent %q", strange)
	}
	if n := len(slices.DeleteFunc(asks, func(path string) bool { return path != "/link/how" })); n != 1 {
		t.Errorf("the connector was asked for %d times", n)
	}
}

// A connector is one of some dialect, and of the dialect that is set.
func TestConnectorOfAnotherDialectIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{pd: true, dialects: engine.NewRegistry(engine.SGLang{}, engine.VLLM{}, linkDialect{})})
	for _, tc := range []struct {
		backend, connector string
		ok                 bool
	}{
		{"link", "RailConnector", true}, {"", "bus", true}, {"", "NixlConnector", true}, {"vllm", "nixl", true},
		{"link", "nixl", false}, {"vllm", "rail", false}, {"sglang", "rail", false}, {"", "fax", false},
	} {
		_, _, err := r.fleet.Add(t.Context(), fleet.WorkerSpec{URL: "http://127.0.0.1:9", Type: config.WorkerPrefill, Backend: tc.backend, KVConnector: tc.connector})
		if (err == nil) != tc.ok {
			t.Errorf("%s %s: %v", tc.backend, tc.connector, err)
		}
	}
}
