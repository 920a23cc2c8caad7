package config

import "cmp"

// automaticLookahead is the lookahead of late binding where it is automatic and of use.
const automaticLookahead = 32

// Lanes reports whether requests wait in lanes, and not in one queue for each class.
func (c *Config) Lanes() bool {
	return c.Admission.QueueOrder == QueueLanes || c.Admission.QueueOrder == QueueAuto && c.Classes != nil
}

// ByCaches reports whether the workers that prefill are chosen by what their caches hold.
func (c *Config) ByCaches() bool {
	if c.Fleet.PDDisaggregation {
		return c.Routing.PrefillPolicy == PolicyCacheAware
	}
	return c.Routing.Policy == PolicyCacheAware
}

// Lookahead is how many of the first waiters of a class are looked at for each grant, at
// least 1.
func (c *Config) Lookahead() int {
	if c.Lanes() && c.ByCaches() {
		return c.Admission.LookaheadOr(automaticLookahead)
	}
	return c.Admission.LookaheadOr(1)
}

// LookaheadOr is the lookahead that is set, else automatic.
func (a Admission) LookaheadOr(automatic int) int { return cmp.Or(a.AffinityLookahead, automatic) }

// LookaheadRemedy names the options by which fewer cached tokens are lost where requests start
// in the order in which they came. It is "" where workers are not chosen by their caches, or
// no request waits for room.
func (c *Config) LookaheadRemedy() string {
	if !c.ByCaches() || !c.Admission.Enabled() && c.Classes == nil {
		return ""
	}
	if c.Lanes() {
		return "--affinity-lookahead 32"
	}
	return "--queue-order lanes, or --affinity-lookahead 32"
}

// LookaheadAdvice tells what the order of waiting requests costs, or that a lookahead that is
// set is of no use, or is "".
func (c *Config) LookaheadAdvice() string {
	if c.Admission.AffinityLookahead > 1 && !c.ByCaches() && !c.ConditionalDisagg.Enabled {
		return "--affinity-lookahead has no effect: only cache_aware (--policy, --prefill-policy) asks what is cached of a request, so that none goes before another for it"
	}
	remedy := c.LookaheadRemedy()
	if remedy == "" || c.Lookahead() > 1 {
		return ""
	}
	return "cache_aware with a queue in first-come order: in a full fleet the request at the head takes whichever worker becomes free, and finds little of its prompt cached there; set " +
		remedy + ", so that requests start where their prompts are cached (affinity in GET /admission tells how many cached tokens are lost)"
}
