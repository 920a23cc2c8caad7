package dispatch

import (
	"bytes"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

// named counts the requests for which an engine was sent the model's own name, and fails
// the test for any that came with the alias.
func (r *rig) named(model, alias string) (n int) {
	r.t.Helper()
	for _, w := range r.sim.Workers() {
		for _, q := range w.Requests() {
			if bytes.Contains(q.Body, []byte(`"`+alias+`"`)) {
				r.t.Errorf("%s was sent the alias: %s", q.Path, q.Body)
			}
			if bytes.Contains(q.Body, []byte(`"model":"`+model+`"`)) {
				n++
			}
		}
	}
	return n
}

func aliases(c *config.Config) {
	c.Fleet.ModelAliases = config.ModelAliases{"gpt": "sim-model", "gone": "nobody"}
}

// vLLM refuses a model that it does not list, so that each leg must name the model.
func TestEnginesAreSentTheModelOfAnAlias(t *testing.T) {
	t.Parallel()
	chat := strings.Replace(chatBody(""), `"sim-model"`, `"gpt"`, 1)
	messages := `{"model":"gpt","max_tokens":3,"messages":[{"role":"user","content":"hi"}]}`
	for _, tc := range []struct {
		what       string
		o          rigOptions
		path, body string
		legs       int
	}{
		{"whole", rigOptions{sim: sim.Options{Regular: 1}}, "/v1/chat/completions", chat, 1},
		{"whole, vLLM", rigOptions{sim: sim.Options{Regular: 1, Worker: sim.WorkerOptions{Backend: sim.VLLM}}}, "/v1/chat/completions", chat, 1},
		{"pair", pd(rigOptions{}), "/v1/chat/completions", chat, 2},
		{"pair, samples", pd(rigOptions{}), "/v1/chat/completions", strings.Replace(chat, `{`, `{"n":2,`, 1), 4},
		{"pair, translated", pd(rigOptions{}), "/v1/messages", messages, 2},
		{"pair, vLLM", pd(rigOptions{sim: sim.Options{Worker: sim.WorkerOptions{Backend: sim.VLLM}}}), "/v1/chat/completions", chat, 2},
	} {
		t.Run(tc.what, func(t *testing.T) {
			t.Parallel()
			tc.o.config = aliases
			r := newRig(t, tc.o)
			r.resetLogs()
			if a := r.do(t.Context(), tc.path, tc.body); a.status != 200 {
				t.Fatalf("%d %s", a.status, a.body)
			}
			if n := r.named("sim-model", "gpt"); n != tc.legs {
				t.Errorf("%d legs name the model, want %d", n, tc.legs)
			}
			if rec := r.waitRecord(0); rec.Model != "sim-model" {
				t.Errorf("recorded as %q", rec.Model)
			}
			r.idle()
			r.noViolations()
		})
	}
}

func TestAliasOfAModelThatNobodyServes(t *testing.T) {
	t.Parallel()
	r := newRig(t, rigOptions{sim: sim.Options{Regular: 1}, config: aliases})
	a := r.do(t.Context(), "/v1/chat/completions", strings.Replace(chatBody(""), `"sim-model"`, `"gone"`, 1))
	if a.status != 404 || a.code() != "model_not_found" || !strings.Contains(a.body, "gone") {
		t.Errorf("%d %s", a.status, a.body)
	}
	r.fleet.SetAliases(nil)
	if a := r.do(t.Context(), "/v1/chat/completions", strings.Replace(chatBody(""), `"sim-model"`, `"gpt"`, 1)); a.status != 404 {
		t.Errorf("after the alias went: %d %s", a.status, a.body)
	}
}

func (r *rig) resetLogs() {
	for _, w := range r.sim.Workers() {
		w.ResetLog()
	}
}
