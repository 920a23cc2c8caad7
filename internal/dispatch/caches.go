package dispatch

import (
	"slices"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/kv"
	"github.com/sluice-router/sluice/internal/mono"
	"github.com/sluice-router/sluice/internal/policy"
)

// caches is what the dispatcher does with the index of KV caches. There is none where nobody
// asks what engines have cached, and no log is to tell which prompts are alike.
type caches struct {
	// immutable
	index *kv.Index
	fleet *fleet.Fleet
	// bypasses: requests may run whole on decode ranks because of what these have cached.
	bypasses bool
	// choosing: ranks are chosen by what they have cached. Otherwise nothing is looked up or
	// recorded.
	choosing bool
	// logging: keys of prompts go to the access log.
	logging bool
	// heat counts which beginnings of prompts many share; nil unless choosing.
	heat *kv.Heat

	mu sync.Mutex
	// scopes are those of exact ranks, by pool; guarded by mu
	scopes map[string]*exactScopes
}

// exactScopes are what the blocks that engines of a pool tell of are apart by, and when the
// ranks were asked for it.
type exactScopes struct {
	scopes []fleet.ExactScope
	asked  mono.Instant
}

// newCaches is nil if nothing depends on the index.
func newCaches(o *Options, f *fleet.Fleet) *caches {
	cfg := o.Config
	choosing := o.Index != nil && UsesCaches(cfg)
	if !choosing && !cfg.Log.AccessPrefixHashes {
		return nil
	}
	c := &caches{index: o.Index, fleet: f, bypasses: bypassesByCache(cfg), choosing: choosing, logging: cfg.Log.AccessPrefixHashes, scopes: map[string]*exactScopes{}}
	if choosing {
		c.heat = new(kv.Heat)
	}
	return c
}

// UsesCaches tells whether any choice depends on what engines have cached: else nobody needs
// to know it.
func UsesCaches(cfg *config.Config) bool {
	by := cfg.Routing.Policy
	if cfg.Fleet.PDDisaggregation {
		by = cfg.Routing.PrefillPolicy
	}
	return policy.UsesHolders(string(by)) || bypassesByCache(cfg)
}

// bypassesByCache tells whether requests may run whole on decode ranks because of what these
// have cached.
func bypassesByCache(cfg *config.Config) bool {
	c := &cfg.ConditionalDisagg
	return cfg.Fleet.PDDisaggregation && c.Enabled && c.Policy != config.ConditionalPrefillLoad
}

const (
	// askScopesEach is how often a pool is asked for its exact scopes.
	askScopesEach = time.Second
	// maxScopesPools bounds the pools that they are kept for.
	maxScopesPools = 1024
)

// exactScopes are the models and lengths of blocks to hash token ids for, a few at most. An
// engine has one cache for all names that it serves a model by, and so its blocks are known by
// one of them, which need not be the pool's.
func (c *caches) exactScopes(pool string) []fleet.ExactScope {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := mono.Now()
	b := c.scopes[pool]
	if b != nil && now.Sub(b.asked) < askScopesEach {
		return b.scopes
	}
	if len(c.scopes) >= maxScopesPools {
		clear(c.scopes)
	}
	b = &exactScopes{asked: now}
	for _, s := range c.fleet.Serving(pool) {
		if e := s.Rank.ExactScope(); e.Block > 0 && !slices.Contains(b.scopes, e) && len(b.scopes) < maxExactScopes {
			b.scopes = append(b.scopes, e)
		}
	}
	c.scopes[pool] = b
	return b.scopes
}
