package server

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

// The fleet of most tests of classes: KV blocks of 10 tokens, 100 of them on each
// decode worker.
const (
	blockTokens = 10
	kvBlocks    = 100
)

func smallKV(s *setup) {
	s.sim.Worker.KVTokens, s.sim.Worker.PageSize, s.sim.Worker.ChunkedPrefillSize = kvBlocks*blockTokens, blockTokens, 1000
}

func ptr[T any](v T) *T { return &v }

// classes are a profile of one bucket in which each class is a family of its own,
// the first the default.
func classes(list ...admission.Class) *admission.Classes {
	p := &admission.Profile{DefaultFamily: list[0].Name, Buckets: []admission.Bucket{{Name: "all"}}}
	for _, c := range list {
		c.Family, c.Bucket = c.Name, "all"
		if c.Quantum == 0 {
			c.Quantum = 100
		}
		p.Classes = append(p.Classes, c)
	}
	return &admission.Classes{Root: p}
}

func startClasses(t *testing.T, cs *admission.Classes, change func(*setup)) *rig {
	t.Helper()
	if err := cs.Validate(); err != nil {
		t.Fatal(err)
	}
	r := start(t, func(s *setup) {
		smallKV(s)
		if change != nil {
			change(s)
		}
	})
	r.gate.SetClasses(cs)
	r.waitCapacity()
	return r
}

// waitCapacity waits until the gate knows what its ranks can take.
func (r *rig) waitCapacity() {
	r.t.Helper()
	r.waitFor("capacities", func() bool {
		doc := r.admission()
		return len(doc.Ranks) > 0 && !slices.ContainsFunc(doc.Ranks, func(k rankDoc) bool { return k.Capacity.KVBlocks == 0 || !k.Candidate })
	})
}

func (r *rig) admission() (doc admissionDoc) {
	r.t.Helper()
	a := r.do("GET", "/admission", "")
	if err := json.Unmarshal([]byte(a.body), &doc); err != nil || a.status != 200 {
		r.t.Fatalf("status %d, %v: %s", a.status, err, a.body)
	}
	return doc
}

// class is what GET /admission tells of a class.
func (r *rig) class(name string) classDoc {
	r.t.Helper()
	for _, q := range r.admission().Queues {
		for _, c := range q.Classes {
			if c.Class == name {
				return c
			}
		}
	}
	r.t.Fatalf("there is no class %s", name)
	return classDoc{}
}

// rank is what it tells of the first rank of a role.
func (r *rig) rank(role string) rankDoc {
	r.t.Helper()
	for _, k := range r.admission().Ranks {
		if k.Role == role {
			return k
		}
	}
	r.t.Fatalf("there is no %s rank", role)
	return rankDoc{}
}

// promptOf is a request whose prompt has exactly n tokens: it is given as such.
func promptOf(n int, extra string) string {
	ids := strings.TrimSuffix(strings.Repeat("7,", n), ",")
	return fmt.Sprintf(`{"model":"sim-model","prompt":[%s],"max_tokens":1%s}`, ids, extra)
}

const completions = "/v1/completions"

func class(name string) []string { return []string{"X-Sluice-Class", name} }

// flight is a request under way.
type flight struct {
	cancel context.CancelFunc
	done   chan struct{}
	answer answer // once done
	err    error
}

func (r *rig) fly(body string, headers ...string) *flight {
	r.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	f := &flight{cancel: cancel, done: make(chan struct{})}
	req, err := http.NewRequestWithContext(ctx, "POST", r.url+completions, strings.NewReader(body))
	if err != nil {
		r.t.Fatal(err)
	}
	for i := 0; i+1 < len(headers); i += 2 {
		req.Header.Add(headers[i], headers[i+1])
	}
	go func() {
		defer close(f.done)
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			f.err = err
			return
		}
		defer func() { _ = resp.Body.Close() }() // only read
		b, err := io.ReadAll(resp.Body)
		f.answer, f.err = answer{resp.StatusCode, resp.Header, string(b)}, err
	}()
	r.t.Cleanup(func() { cancel(); <-f.done })
	return f
}

// good waits for a whole good answer.
func (f *flight) good(t *testing.T) answer {
	t.Helper()
	select {
	case <-f.done:
	case <-time.After(2 * patience):
		t.Fatal("no answer")
	}
	if f.err != nil || f.answer.status != 200 {
		t.Errorf("status %d, %v: %s", f.answer.status, f.err, f.answer.body)
	}
	return f.answer
}

// leave is the client's end of the request.
func (f *flight) leave() { f.cancel(); <-f.done }

// block makes one request that stays at a worker until it is told to leave. Its
// prompt has n tokens. On a decode worker it has come as far as its first token, so
// that prefill is done with it; on others it has got no answer.
func (r *rig) block(w *sim.Worker, n int, headers ...string) *flight {
	r.t.Helper()
	body := promptOf(n, "")
	if w.Role() == sim.Decode {
		timing := w.Timing()
		timing.DecodeStep = time.Hour // behind the first token, which others have alone
		w.SetTiming(timing)
		body = strings.Replace(body, `"max_tokens":1`, `"max_tokens":2,"stream":true`, 1)
	} else {
		body = promptOf(n, `,"sim":{"delay":"1h"}`) // its own, so that no other request can have it instead
	}
	before := w.Stats().Requests // not those in flight: the one before may just be ending
	f := r.fly(body, headers...)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	if err := w.Wait(ctx, func(s sim.Stats) bool { return s.Requests > before }); err != nil {
		r.t.Fatalf("the request is not at %s: %v", w.ID(), err)
	}
	if w.Role() == sim.Decode {
		r.waitFor("the end of its prefill", func() bool { k := r.rank("prefill"); return k.PrefillTokens == 0 && k.Slots == 0 })
	}
	return f
}

func (r *rig) waitDepth(name string, n int) {
	r.t.Helper()
	r.waitFor(fmt.Sprintf("%d waiting in class %s", n, name), func() bool { return r.class(name).Depth == n })
}

// refusal is the gate's, as an answer tells it.
type refusal struct {
	Error struct {
		Message, Type, Code string
		Admission           *struct {
			Gate, Resource, Class string
			Retryable             bool
			RetryAfterMS          int64 `json:"retry_after_ms"`
			QueueDepth            int   `json:"queue_depth"`
		}
		Details *struct {
			PolicyClass string `json:"policy_class"`
			LimitKind   string `json:"limit_kind"`
			Current     int64  `json:"current"`
			Limit       int64  `json:"limit"`
		}
	}
}

func (a answer) refusal(t *testing.T, status int, code string) (v refusal) {
	t.Helper()
	a.refused(t, status, code)
	if err := json.Unmarshal([]byte(a.body), &v); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if v.Error.Admission == nil {
		t.Fatalf("no admission object in %s", a.body)
	}
	secs := a.header.Get("Retry-After")
	if secs == "" || secs == "0" || v.Error.Admission.RetryAfterMS < 1000 || !v.Error.Admission.Retryable {
		t.Errorf("Retry-After %q: %s", secs, a.body)
	}
	return v
}
