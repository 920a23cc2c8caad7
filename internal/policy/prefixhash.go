package policy

import "github.com/sluice-router/sluice/admission"

// prefixHash sends prompts that begin alike to one rank: the key is the hash of the first
// tokens of the prompt, and leads to a rank as in consistentHashing. It keeps nothing of
// what it has placed.
//
// The load of a rank is bounded. A rank that has more than loadFactor times the mean of the
// tokens booked, and more than slack requests above the mean, is passed over: the request
// goes to the least loaded rank. Without that all prompts with one long system prompt would
// go to one rank.
type prefixHash struct {
	ring       namedRing
	loadFactor float64
	slack      float64
	load       tokenLoad
	keys       keyCount
}

func newPrefixHash(o pool) *prefixHash {
	return &prefixHash{
		loadFactor: o.opts.PrefixLoadFactor, slack: float64(o.opts.PrefixLoadSlack),
		load: newTokenLoad(o),
		keys: keyCount{model: o.model, role: o.role, report: o.opts.HotPrefixes},
	}
}

// Measure is that of [admission.Measured].
func (p *prefixHash) Measure() admission.Measure { return p.load.measure }

func (p *prefixHash) Pick(v *admission.View, h *admission.Hint) int {
	if v.Passing() {
		return p.load.passing.Pick(v, h)
	}
	if h.HasPrefix {
		if i := p.ring.walk(h.PrefixKey, maxWalk, v); i >= 0 && !p.overloaded(v, i) {
			return i
		}
	}
	return p.load.least(v)
}

// overloaded tells whether rank index i has more than its bounds.
func (p *prefixHash) overloaded(v *admission.View, i int) bool {
	return float64(v.Amount(i)) > p.loadFactor*v.MeanAmount() && float64(v.Load(i)) > v.MeanLoad()+p.slack
}

func (p *prefixHash) Booked(_ int, h *admission.Hint) {
	if h.HasPrefix {
		p.keys.count(h.PrefixKey)
	}
}

func (p *prefixHash) RankAdded(i int, id string) { p.ring.add(i, id) }

func (p *prefixHash) RankRemoved(i int) { p.ring.remove(i) }
