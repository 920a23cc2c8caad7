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
	t := &x.ticket
	uncached := t.PromptTokens - t.CachedTokens
	short := uncached < int64(o.EffISL) && float64(uncached) < o.EffISLRatio*float64(max(t.PromptTokens, 1))
	rule := bypassRule(o, short, t.PromptTokens/16+1)
	gate := x.d.gate
	if !rule.Allows(gate.PoolLoad(spec.Model, admission.RolePrefill), gate.PoolLoad(spec.Model, admission.RoleDecode)) {
		return nil
	}
	spec.Shape = admission.Bypass
	spec.Topology = admission.TopologyAny
	if around := gate.Resolve(spec); around != nil {
		t.Instead, t.Target, t.Bypass = t.Target, around, rule
	}
	return nil
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
