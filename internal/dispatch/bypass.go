package dispatch

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/engine"
)

// BypassRule says which requests skip the prefill workers.
type BypassRule uint8

// The rules. Off is the zero value.
const (
	BypassOff BypassRule = iota
	// BypassByLength: those with few uncached tokens.
	BypassByLength
	// BypassByLoad: those that would meet a busy prefill pool.
	BypassByLoad
	// BypassByEither of the two.
	BypassByEither
)

// BypassOptions are for requests that run whole on a decode worker, though
// prefill and decode are apart. They hold no KV cache of a prefill, so they take
// the whole gate on the decode ranks.
type BypassOptions struct {
	Rule BypassRule
	// Tokens and Ratio bound what is uncached of a prompt, by length: fewer
	// tokens than the one, and a smaller part of it than the other.
	Tokens int64
	Ratio  float64
	// PrefillBusy is the part of the prefill ranks' max_num_batched_tokens beyond
	// which their pool is busy. Negative: not looked at.
	PrefillBusy float64
	// DecodeBusy guards the decode pool: no bypass where more of its KV blocks
	// would be in use, or where they are not known. Negative: no guard.
	DecodeBusy float64
}

// bypass gives the request the choice of running whole on a decode rank: decided
// now, and once more when it first comes to the head of its queue. Only engines
// that compute a prompt without a hand-off can: SGLang's decode servers refuse.
func (x *exchange) bypass(spec admission.TargetSpec) {
	o := &x.d.opts.Bypass
	if o.Rule == BypassOff || !x.pair || spec.Pins[admission.PrefillLeg] != "" || !x.d.decodesAlone(spec.Model) {
		return
	}
	t := &x.ticket
	uncached := t.PromptTokens - t.CachedTokens
	short := uncached < o.Tokens && float64(uncached) < o.Ratio*float64(max(t.PromptTokens, 1))
	blocks := t.PromptTokens/16 + 1
	may := func(prefill, decode admission.PoolLoad) bool { return o.may(short, blocks, prefill, decode) }
	gate := x.d.gate
	if !may(gate.PoolLoad(spec.Model, admission.RolePrefill), gate.PoolLoad(spec.Model, admission.RoleDecode)) {
		return
	}
	spec.Shape = admission.Bypass
	spec.Topology = admission.TopologyAny
	if around := gate.Resolve(spec); around != nil {
		t.Instead, t.Target, t.Reconsider = t.Target, around, may
	}
}

// may decides on what the pools hold now.
func (o *BypassOptions) may(short bool, blocks int64, prefill, decode admission.PoolLoad) bool {
	if o.DecodeBusy >= 0 && (decode.KVBlocks == 0 || float64(decode.Blocks+blocks) > o.DecodeBusy*float64(decode.KVBlocks)) {
		return false
	}
	busy := o.PrefillBusy >= 0 && prefill.BatchedTokens > 0 && float64(prefill.PrefillTokens) > o.PrefillBusy*float64(prefill.BatchedTokens)
	switch o.Rule {
	case BypassByLength:
		return short
	case BypassByLoad:
		return busy
	case BypassByEither:
		return short || busy
	}
	return false
}

// decodesAlone tells whether all decode workers of a model can run whole requests.
func (d *Dispatcher) decodesAlone(model string) bool {
	some := false
	for _, w := range d.fleet.List() {
		if w.Role() != admission.RoleDecode || !w.Serves(model) {
			continue
		}
		if w.Backend() != engine.DialectVLLM {
			return false
		}
		some = true
	}
	return some
}

// bypasses tells whether the ticket was granted a decode rank alone.
func (x *exchange) bypasses() bool {
	return x.ticket.Target.Shape() == admission.Bypass
}
