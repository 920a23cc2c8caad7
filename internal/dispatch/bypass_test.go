package dispatch

import (
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/sim"
)

func TestBypassRules(t *testing.T) {
	f := func(o *config.ConditionalDisagg, short bool, prefill, decode admission.PoolLoad, want bool) {
		t.Helper()
		if got := bypassRule(o, short, 10).Allows(prefill, decode); got != want {
			t.Errorf("%+v, short %t, prefill %+v, decode %+v: %t, want %t", o, short, prefill, decode, got, want)
		}
	}
	idle, busy := admission.PoolLoad{BatchedTokens: 1000}, admission.PoolLoad{BatchedTokens: 1000, PrefillTokens: 600}
	free := admission.PoolLoad{KVBlocks: 100}
	half, most := 0.5, 0.8
	for _, tc := range []struct {
		rule                                     config.ConditionalPolicy
		shortIdle, longIdle, shortBusy, longBusy bool
	}{
		{config.ConditionalISL, true, false, true, false},
		{config.ConditionalPrefillLoad, false, false, true, true},
		{config.ConditionalISLOrLoad, true, false, true, true},
	} {
		o := &config.ConditionalDisagg{Policy: tc.rule, PrefillBusy: &half}
		f(o, true, idle, free, tc.shortIdle)
		f(o, false, idle, free, tc.longIdle)
		f(o, true, busy, free, tc.shortBusy)
		f(o, false, busy, free, tc.longBusy)
	}
	guarded := &config.ConditionalDisagg{Policy: config.ConditionalISL, DecodeBusy: &most}
	f(guarded, true, idle, admission.PoolLoad{KVBlocks: 100, Blocks: 70}, true)
	f(guarded, true, idle, admission.PoolLoad{KVBlocks: 100, Blocks: 71}, false)
	f(guarded, true, idle, admission.PoolLoad{}, false)
}

// A short prompt runs whole on a decode worker and takes no prefill slot; a long
// one goes through prefill.
func TestShortPromptsBypassPrefill(t *testing.T) {
	r := newRig(t, vllm(sim.NIXL, rigOptions{
		limits: admission.Limits{PrefillSlots: 1, QueueSize: 0, QueueTimeout: time.Minute},
		config: bypassShort,
	}))
	short := `{"model":"sim-model","prompt":"hi","max_tokens":3}`
	long := `{"model":"sim-model","prompt":"` + strings.Repeat(longPrompt, 5) + `","max_tokens":3}`
	for _, body := range []string{short, long} {
		if a := r.do(t.Context(), "/v1/completions", body); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	p, d := r.sim.Prefill(0).Stats(), r.sim.Decode(0).Stats()
	if p.Requests != 1 || d.Requests != 2 {
		t.Errorf("prefill saw %d requests, decode %d", p.Requests, d.Requests)
	}
	if rec := r.waitRecord(0); rec.PrefillRank != "" || rec.DecodeRank == "" {
		t.Errorf("recorded on %q and %q", rec.PrefillRank, rec.DecodeRank)
	}
	r.idle()
	r.noViolations()
}

// SGLang's decode servers refuse a request that comes without a room: nothing
// goes around their prefill.
func TestSGLangHasNoBypass(t *testing.T) {
	r := newRig(t, pd(rigOptions{config: bypassShort}))
	if a := r.chat(""); a.status != 200 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if p := r.sim.Prefill(0).Stats(); p.Requests != 1 {
		t.Errorf("prefill saw %d requests", p.Requests)
	}
	r.idle()
	r.noViolations()
}

// A failed attempt around prefill is tried again; it has no prefill rank to leave
// out.
func TestBypassIsRetried(t *testing.T) {
	r := newRig(t, vllm(sim.NIXL, rigOptions{
		sim: sim.Options{Decode: 2}, retries: 2,
		config: bypassShort,
	}))
	for i := range 2 {
		r.sim.Decode(i).SetFault(sim.Fault{Status: 500, Body: `{"error":{"message":"KV transfer failed","code":500}}`, Count: 1})
	}
	r.sim.Decode(1).ClearFaults()
	for range 2 {
		if a := r.do(t.Context(), "/v1/completions", `{"model":"sim-model","prompt":"hi","max_tokens":3}`); a.status != 200 {
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	r.idle()
}

// bypassShort lets short prompts skip the prefill workers. The ratio is one that
// cannot be set, since nobody tells yet what is cached of a prompt.
func bypassShort(c *config.Config) {
	c.ConditionalDisagg = config.ConditionalDisagg{Enabled: true, Policy: config.ConditionalISL, EffISL: 64, EffISLRatio: 1.1}
}
