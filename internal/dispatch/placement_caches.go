package dispatch

import "github.com/sluice-router/sluice/internal/policy"

// findHolders finds out which ranks that the request may use hold the beginning of its
// prompt, before its class is chosen, which may depend on how much is left to be computed.
// While it waits the gate has them looked up again.
func (x *placement) findHolders() *failure {
	t := &x.ticket
	if x.call.Passing {
		return nil
	}
	x.hashPrefix()
	if x.d.caches == nil || !x.d.caches.choosing && x.call.Record.PromptKeys != nil {
		return nil
	}
	if x.keys == nil {
		x.makeKeys()
	}
	if x.keys != nil {
		t.Matcher = x.keys
		_, t.CachedTokens = x.keys.hint(t.Target, &t.Hints)
	}
	return nil
}

// makeKeys makes the keys of the prompt, unless there is no memory left for them: the request
// is sent somewhere then all the same.
func (x *placement) makeKeys() {
	k := x.d.caches.hashPrompt(x.call.Peeked, x.ticket.Target.Model(), x.spec.Adapter, x.promptTokens(), x.plan.firstPrompt())
	if k == nil {
		return
	}
	if x.d.caches.logging {
		x.call.Record.PromptKeys = k.logged()
	}
	if !x.d.caches.choosing {
		k.release()
		return
	}
	if n := k.bytes(); n > freeAnswer && x.call.Memory != nil {
		if !x.call.Memory.ReserveMemory(n) {
			k.release()
			return
		}
		x.answers.Add(int64(n))
	}
	x.keys = k
}

// hashPrefix tells policies that go by it the hash of the prompt's first bytes.
func (x *placement) hashPrefix() {
	if x.d.prefixBytes <= 0 {
		return
	}
	w := prefixWalks.Get().(*prefixWalk)
	defer prefixWalks.Put(w)
	if w.read(x.call.Peeked, x.d.prefixBytes) {
		for l := range x.ticket.Hints {
			h := &x.ticket.Hints[l]
			h.PrefixKey, h.HasPrefix = policy.HashKey(w.text), true
		}
	}
}
