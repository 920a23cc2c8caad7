package e2e

import (
	"net/http"
	"strings"
	"testing"
)

// kv_handoff_missing says what becomes of a request whose prefill hands nothing over.
func TestHandOffMissing(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--backend", "vllm")
	nothing := `"sim":"on=prefill,status=200,body={\"id\":\"x\"}",`
	startRouter(t, fleet).ask(nothing).good(t) // decode computes the prompt
	r := startRouter(t, fleet, "--kv-handoff-missing", "fail", "--disable-retries")
	a := r.ask(nothing)
	a.refused(t, http.StatusBadGateway, "upstream_failed")
	if !strings.Contains(a.body, "--kv-handoff-missing") {
		t.Errorf("the option is not named: %s", a.body)
	}
	r.ask("").good(t)
}

// kv_handoff_max_age_secs keeps what is too old from decode.
func TestHandOffMaxAge(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--backend", "vllm")
	slow := `"sim":"on=prefill,write_size=300,write_pause=200ms",`
	startRouter(t, fleet).ask(slow).good(t)
	r := startRouter(t, fleet, "--kv-handoff-max-age-secs", "0.05", "--disable-retries")
	a := r.ask(slow)
	a.refused(t, http.StatusBadGateway, "upstream_failed")
	if !strings.Contains(a.body, "too old") {
		t.Errorf("the reason is not told: %s", a.body)
	}
}
