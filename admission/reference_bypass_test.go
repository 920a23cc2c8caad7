package admission

// loads is what the registered ranks of one role of a model hold together.
func (m *reference) loads(model string, role Role) (tokens, batched, blocks, most int64) {
	for _, r := range m.ranks {
		if r.real.role == role && r.serves(model) {
			tokens += r.tokens
			batched += r.real.capacity.MaxBatchedTokens
			blocks += r.blocks[0] + r.blocks[1]
			most += r.real.capacity.KVBlocks
		}
	}
	return tokens, batched, blocks, most
}

// mayBypass tells whether t may still prefill where it decodes.
func (m *reference) mayBypass(t *refTicket) bool {
	rule := t.drawn.Bypass
	tokens, batched, _, _ := m.loads(t.model, RolePrefill)
	_, _, blocks, most := m.loads(t.model, RoleDecode)
	if v := rule.DecodeBusy; v != nil && (most == 0 || float64(blocks+rule.Blocks) > *v*float64(most)) {
		return false
	}
	if rule.Short {
		return true
	}
	v := rule.PrefillBusy
	return v != nil && batched > 0 && float64(tokens) > *v*float64(batched)
}

// reconsider decides once, when t first is the head of its lane, whether it goes on
// without the bypass; it keeps its place. It tells whether it does.
func (m *reference) reconsider(t *refTicket) bool {
	if t.target.shape != Bypass || t.reconsidered {
		return false
	}
	t.reconsidered = true
	if t.drawn.Bypass == nil || t.instead == nil || t.instead.model.name != t.target.model.name || t.instead.shape == Bypass {
		return false
	}
	pair := *t
	pair.target = t.instead
	if !m.hasCandidate(&pair) || m.mayBypass(t) {
		return false
	}
	m.withoutBypass++
	t.target, t.instead, t.exchanged = t.instead, t.target, true
	t.lostAt = never
	m.overtake(t)
	return true
}

// renamed takes over the names that another core gives the targets of t.
func (t *refTicket) renamed() {
	if t.target == nil { // it never came
		return
	}
	a, b := t.real.Target, t.real.Instead
	if b != nil && a.shape != t.target.shape { // decided afresh when the core was made
		a, b = b, a
	}
	t.target, t.instead = a, b
}
