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
	blocks := t.PromptTokens/16 + 1
	may := func(prefill, decode admission.PoolLoad) bool { return mayBypass(o, short, blocks, prefill, decode) }
	gate := x.d.gate
	if !may(gate.PoolLoad(spec.Model, admission.RolePrefill), gate.PoolLoad(spec.Model, admission.RoleDecode)) {
		return nil
	}
	spec.Shape = admission.Bypass
	spec.Topology = admission.TopologyAny
	if around := gate.Resolve(spec); around != nil {
		t.Instead, t.Target, t.Reconsider = t.Target, around, may
	}
	return nil
}

// mayBypass decides on what the pools hold now.
func mayBypass(o *config.ConditionalDisagg, short bool, blocks int64, prefill, decode admission.PoolLoad) bool {
	if most := o.DecodeBusy; most != nil && (decode.KVBlocks == 0 || float64(decode.Blocks+blocks) > *most*float64(decode.KVBlocks)) {
		return false
	}
	busy := o.PrefillBusy != nil && prefill.BatchedTokens > 0 && float64(prefill.PrefillTokens) > *o.PrefillBusy*float64(prefill.BatchedTokens)
	switch o.Policy {
	case config.ConditionalISL:
		return short
	case config.ConditionalPrefillLoad:
		return busy
	case config.ConditionalISLOrLoad:
		return short || busy
	}
	return false
}
