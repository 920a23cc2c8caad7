package main

import (
	"context"
	"log/slog"
	"math/rand/v2"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/policy"
)

// policies makes the policies of the three roles. Pools in which more than half of the
// requests begin alike are sent to hot.
func policies(r config.Routing, hot chan<- policy.HotPrefix) (admission.PolicyFactory, error) {
	var made [3]admission.PolicyFactory
	seed := rand.Uint64()
	options := policy.Options{
		CacheWeight: r.CacheWeight, CacheMinMatch: r.CacheMinMatch,
		PrefixTokens: r.PrefixTokenCount, PrefixLoadFactor: r.PrefixHashLoadFactor, PrefixLoadSlack: int64(r.PrefixHashBalanceAbs),
		HotPrefixes: hot,
	}
	for i, name := range []config.Policy{r.Policy, r.PrefillPolicy, r.DecodePolicy} {
		var err error
		if made[i], err = policy.NewWith(string(name), seed, options); err != nil {
			return nil, err
		}
	}
	return policy.PerRole(made[0], made[1], made[2]), nil
}

// maxHotPrefixes is how many pools with a hot prefix wait to be told.
const maxHotPrefixes = 16

// tellHotPrefixes logs pools that prefix_hash cannot spread, until ctx ends.
func tellHotPrefixes(ctx context.Context, hot <-chan policy.HotPrefix, log *slog.Logger) {
	for {
		select {
		case h := <-hot:
			log.Warn("prefix_hash: most requests begin alike, so that only the bound of its load spreads them; cache_aware, or a larger --prefix-token-count, would tell them apart",
				"model", h.Model, "role", h.Role.String(), "requests", h.Requests, "of", h.Of)
		case <-ctx.Done():
			return
		}
	}
}

// newDefaultPolicy is the log message that workers are chosen by another policy than in
// earlier versions, where no policy was set; else "".
func newDefaultPolicy(cfg *config.Config) string {
	unset := func(path string) bool { return cfg.Origin(path).Kind == config.FromDefault }
	switch {
	case !unset("routing.policy"):
		return ""
	case !cfg.Fleet.PDDisaggregation:
		return "policy: cache_aware, by default; it was power_of_two in earlier versions (--policy)"
	case unset("routing.prefill_policy") && unset("routing.decode_policy"):
		return "policy: cache_aware, by default: prefill by caches and load, decode by load; it was power_of_two in earlier versions (--policy)"
	case unset("routing.prefill_policy"):
		return "policy of prefill: cache_aware, by default; it was power_of_two in earlier versions (--prefill-policy)"
	case unset("routing.decode_policy"):
		return "policy of decode: cache_aware, by default, which is by load; it was power_of_two in earlier versions (--decode-policy)"
	}
	return ""
}
