package main

import (
	"context"
	"log/slog"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/policy"
	"github.com/sluice-router/sluice/internal/sim"
)

// Who has set no policy is told at the start that another is in force than before.
func TestANewDefaultPolicyIsTold(t *testing.T) {
	for args, want := range map[string]string{
		"":                                "policy: cache_aware",
		"--policy random":                 "",
		"--policy cache_aware":            "",
		"--pd-disaggregation":             "prefill by caches and load, decode by load",
		"--pd-disaggregation --policy rr": "error",
		"--pd-disaggregation --prefill-policy random":                        "policy of decode:",
		"--pd-disaggregation --decode-policy random":                         "policy of prefill:",
		"--pd-disaggregation --prefill-policy random --decode-policy random": "",
	} {
		cfg, _, err := config.Load(strings.Fields(args), nil, nil)
		if err != nil {
			if want != "error" {
				t.Error(err)
			}
			continue
		}
		got := newDefaultPolicy(cfg)
		if (got == "") != (want == "") || !strings.Contains(got, want) || got != "" && !strings.Contains(got, "power_of_two in earlier versions") {
			t.Errorf("%q: %q, want %q", args, got, want)
		}
	}
	p := serve(t, "--worker-urls", workers(t, sim.Options{Regular: 1}).Regular(0).URL())
	p.line("cache_aware, by default")
}

// All options of policies arrive.
func TestPoliciesAreMadeOfTheConfiguration(t *testing.T) {
	cfg, _, err := config.Load(strings.Fields("--policy prefix_hash"), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := policies(cfg.Routing, nil); err != nil {
		t.Error(err)
	}
	if d := policy.DefaultOptions(); d != (policy.Options{
		CacheWeight: cfg.Routing.CacheWeight, CacheMinMatch: cfg.Routing.CacheMinMatch, PrefixTokens: cfg.Routing.PrefixTokenCount,
		PrefixLoadFactor: cfg.Routing.PrefixHashLoadFactor, PrefixLoadSlack: int64(cfg.Routing.PrefixHashBalanceAbs),
	}) {
		t.Errorf("the defaults of package policy are %+v", d)
	}
	for _, name := range policy.Names() {
		if _, _, err := config.Load([]string{"--policy", name}, nil, nil); err != nil {
			t.Error(err)
		}
	}
}

// TestAHotPrefixIsTold: the log says that prefix_hash does not spread.
func TestAHotPrefixIsTold(t *testing.T) {
	var out strings.Builder
	hot := make(chan policy.HotPrefix)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		tellHotPrefixes(ctx, hot, slog.New(slog.NewTextHandler(&out, nil)))
	}()
	hot <- policy.HotPrefix{Model: "m", Role: admission.RolePrefill, Requests: 400, Of: 512}
	cancel()
	<-done
	if l := out.String(); !strings.Contains(l, "begin alike") || !strings.Contains(l, "model=m role=prefill requests=400 of=512") {
		t.Error(l)
	}
}
