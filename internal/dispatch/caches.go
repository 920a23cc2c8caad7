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
	// sizes are the lengths of blocks of exact ranks, by pool; guarded by mu
	sizes map[string]*blockSizes
}

// blockSizes are the lengths in tokens of the blocks that engines of a pool tell of, and when
// they were asked for.
type blockSizes struct {
	sizes []int
	asked mono.Instant
}

// newCaches is nil if nothing depends on the index.
func newCaches(o *Options, f *fleet.Fleet) *caches {
	cfg := o.Config
	choosing := o.Index != nil && UsesCaches(cfg)
	if !choosing && !cfg.Log.AccessPrefixHashes {
		return nil
	}
	c := &caches{index: o.Index, fleet: f, bypasses: bypassesByCache(cfg), choosing: choosing, logging: cfg.Log.AccessPrefixHashes, sizes: map[string]*blockSizes{}}
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
	// askSizesEach is how often a pool is asked for the lengths of its blocks.
	askSizesEach = time.Second
	// maxSizesPools bounds the pools that they are kept for.
	maxSizesPools = 1024
)

// blockSizes are the lengths of blocks to hash token ids for, a few at most.
func (c *caches) blockSizes(pool string) []int {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := mono.Now()
	b := c.sizes[pool]
	if b != nil && now.Sub(b.asked) < askSizesEach {
		return b.sizes
	}
	if len(c.sizes) >= maxSizesPools {
		clear(c.sizes)
	}
	b = &blockSizes{asked: now}
	for _, s := range c.fleet.Serving(pool) {
		if size := s.Rank.ExactBlock(); size > 0 && !slices.Contains(b.sizes, size) && len(b.sizes) < maxBlockSizes {
			b.sizes = append(b.sizes, size)
		}
	}
	c.sizes[pool] = b
	return b.sizes
}
