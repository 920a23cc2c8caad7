package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// maybeBypass gives the request the choice of running whole on a decode rank, though
// prefill and decode are apart. It holds no KV cache of a prefill then, so it takes the
// whole gate on the decode ranks. That is decided
// now, and once more when it first comes to the head of its queue. Only engines
// that compute a prompt without a hand-off can: SGLang's decode servers refuse.
func (x *placement) maybeBypass() *failure {
	spec, o := x.spec, &x.d.cfg.ConditionalDisagg
	if !o.Enabled || !x.plan.pair || spec.Pins[admission.PrefillLeg] != "" || !x.d.decodesAlone(spec.Model) {
		return nil
	}
	t, gate := &x.ticket, x.d.gate
	allows := func(r *admission.BypassRule) bool {
		return r.Allows(gate.PoolLoad(spec.Model, admission.RolePrefill), gate.PoolLoad(spec.Model, admission.RoleDecode))
	}
	blocks := t.PromptTokens/16 + 1
	if !allows(bypassRule(o, true, blocks)) {
		return nil
	}
	spec.Shape, spec.Topology = admission.Bypass, admission.TopologyAny
	around := gate.Resolve(spec)
	if around == nil {
		return nil
	}
	cached := t.CachedTokens
	if x.keys != nil { // the prompt would be computed where it is decoded
		_, cached = x.keys.hint(around, &t.Hints)
	}
	rule := bypassRule(o, isShort(o, t.PromptTokens, cached), blocks)
	if !allows(rule) {
		(&admission.Ticket{Target: around}).Close() // gives it back
		return nil
	}
	t.Instead, t.Target, t.Bypass = t.Target, around, rule
	t.CachedTokens = cached
	return nil
}

// isShort tells whether little enough of a prompt is left to be computed, in all and of the
// whole.
func isShort(o *config.ConditionalDisagg, prompt, cached int64) bool {
	uncached := max(prompt-cached, 0)
	return uncached < int64(o.EffISL) && float64(uncached) < o.EffISLRatio*float64(max(prompt, 1))
}

// bypassRule is the configured rule for a request of so many KV blocks; short: its prompt
// is short enough, or cached enough.
func bypassRule(o *config.ConditionalDisagg, short bool, blocks int64) *admission.BypassRule {
	rule := &admission.BypassRule{DecodeBusy: o.DecodeBusy, Blocks: blocks}
	if o.Policy == config.ConditionalISL || o.Policy == config.ConditionalISLOrLoad {
		rule.Short = short
	}
	if o.Policy == config.ConditionalPrefillLoad || o.Policy == config.ConditionalISLOrLoad {
		rule.PrefillBusy = o.PrefillBusy
	}
	return rule
}
