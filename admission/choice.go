package admission

// Choice tells how a request was given the rank that prefills it, by what its hint said
// of the caches.
type Choice struct {
	// Best is how many of the first prompt tokens the best eligible rank was believed to
	// hold, Held how many the chosen one.
	Best, Held int64
	// Leg is that on which the prompt is prefilled: DecodeLeg for a request that needs
	// one rank.
	Leg Leg
	Why ChoiceReason
}

// ChoiceReason is why a rank was chosen.
type ChoiceReason uint8

// The reasons.
const (
	// ChosenWithoutHolder: no eligible rank was believed to hold anything.
	ChosenWithoutHolder ChoiceReason = iota
	// ChosenAsHolder: none holds more.
	ChosenAsHolder
	// ChosenByLoad: another one with room holds more; the policy, a priority or a
	// preference was for this one.
	ChosenByLoad
	// ChosenByRoom: the one that holds most had no room.
	ChosenByRoom
	numChoiceReasons
)

func (r ChoiceReason) String() string {
	switch r {
	case ChosenAsHolder:
		return "holder"
	case ChosenByLoad:
		return "load"
	case ChosenByRoom:
		return "room"
	}
	return "none"
}

// Choice tells how the ranks that the ticket was granted last were chosen.
func (t *Ticket) Choice() Choice { return t.choice }

// holding is the eligible rank that a hint says to hold most.
type holding struct {
	tokens int64
	room   bool // it is one that could be chosen
}

// bestHolding finds it among the candidates of a leg, with room or not. Of those with
// room, set has the ones that t could be given.
func (ch *chooser) bestHolding(t *Ticket, l Leg, set bitmap) (best holding) {
	for _, h := range &t.Hints[l].Holders {
		switch r := h.Rank; {
		case r == nil:
			return best
		case r.index < 0 || h.Tokens <= 0:
		case set.has(r.index):
			return holding{h.Tokens, true}
		case ch.couldHold(t, l, r):
			return holding{h.Tokens, false}
		}
	}
	return best
}

// couldHold tells whether r is a candidate for leg l of t, room or not.
func (f *filter) couldHold(t *Ticket, l Leg, r *Rank) bool {
	b := t.Target.bits[l]
	return r.index >= 0 && r.cand && r.role == t.Target.role(l) && t.Target.model.pools[r.role].cand.has(r.index) &&
		(b == nil || b.has(r.index)) && (t.mask == nil || !t.mask.bits.has(r.index)) && !t.Exclude.covers(l, r)
}

// covers tells whether r, or another rank of its worker, is excluded from leg l.
func (x *Exclusions) covers(l Leg, r *Rank) bool {
	for _, o := range x[l] {
		if o == r || o.worker == r.worker && o.worker != "" {
			return true
		}
	}
	return false
}

// explain notes how t was given the rank r of leg l.
func (best holding) explain(t *Ticket, l Leg, r *Rank) {
	t.choice = Choice{Leg: l, Best: best.tokens}
	if best.tokens == 0 {
		return
	}
	t.choice.Held = t.Hints[l].Cached(r)
	switch {
	case t.choice.Held >= best.tokens:
		t.choice.Why = ChosenAsHolder
	case best.room:
		t.choice.Why = ChosenByLoad
	default:
		t.choice.Why = ChosenByRoom
	}
}

// lostTokens counts the cached tokens that requests did not find where they were sent,
// because a rank that held more had no room.
type lostTokens struct {
	total uint64
	rate  rateMeter
}

func (x *lostTokens) count(now Instant, c *Choice) {
	if c.Why != ChosenByRoom {
		return
	}
	n := min(c.Best-c.Held, maxAmount)
	x.total += uint64(n)
	x.rate.addMany(now, n)
}

// perMinute is the pace at which they are lost, by the last half minute.
func (x *lostTokens) perMinute(now, start Instant) int64 {
	rate := x.rate // asking changes it
	return int64(60 * rate.perSecond(now, start))
}
