package kv

// Record is Store for a rank that is sent the prompt of keys. It returns how many of the
// blocks r was not known to hold, which are the last of keys; see Undo.
func (x *Index) Record(r *Rank, keys []Key) (added int) {
	most, reserved := x.reserve(len(keys), entryCost)
	held := 0
	if most > 0 {
		r.mu.Lock()
		s := step{x: x, r: r}
		held = s.store(keys[:most])
		s.end()
		r.mu.Unlock()
	}
	x.used.Add(-reserved)
	x.sweep(sweepWith + 4*most)
	return len(keys) - held
}

// Undo takes back a Record of keys that returned added, as r did not accept the prompt.
// Blocks that a later Record went on from stay.
func (x *Index) Undo(r *Rank, keys []Key, added int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := step{x: x, r: r}
	for i := len(keys) - 1; i >= len(keys)-added; i-- {
		// The last of keys may have found no room, or be gone already.
		e := r.set.find(number(keys[i]))
		if e == 0 {
			continue
		}
		if r.set.kids(e) > 0 {
			break
		}
		s.drop(e)
	}
	s.end()
}

// correction is what reports of cached tokens say of how much a rank holds.
type correction struct {
	scale    float64 // of what SetBlocks says, or of learned
	learned  int64   // blocks, where SetBlocks says nothing: what was held when reports fell short
	reports  int
	believed int64 // tokens, since the last look
	reported int64
	above    int64 // tokens that were reported and not believed
}

const (
	// correctionLook is how many reports are looked at together.
	correctionLook = 32
	// minBelieved is how many tokens must have been believed to be held for a report to say
	// something: engines report whole blocks, and a byte's tokens are an estimate.
	minBelieved = 128
	// Below shortfall of what was believed, a rank is taken to hold less; over surplus more.
	shortfall, surplus = 0.85, 1.1
	// A look changes the scale by this at most down; back up it goes in smaller steps.
	scaleDown, scaleUp = 0.7, 1.03
	scaleMin, scaleMax = 1.0 / 64, 4
)

// Correct tells what an answer of r says of how much of its prompt was cached, where so many
// tokens were believed to be. Where reports stay well below what was believed, r is taken to
// hold less than SetBlocks says; where they stay above, to hold more. Reports about prompts
// of which little was believed to be held count only for the latter.
func (x *Index) Correct(r *Rank, believed, reported int64) {
	if reported < 0 || believed < 0 || max(believed, reported) < minBelieved {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := &r.correction
	c.reports++
	c.believed += believed
	c.reported += min(reported, believed)
	c.above += max(reported-believed, 0)
	if c.reports < correctionLook {
		return
	}
	part, more := float64(c.reported)/float64(max(c.believed, 1)), float64(c.above)/float64(max(c.believed, 1))
	c.reports, c.believed, c.reported, c.above = 0, 0, 0, 0
	switch {
	case part < shortfall:
		if r.limit.Load() <= 0 && c.learned == 0 {
			c.learned = int64(r.set.live)
		}
		c.scale *= max(part, scaleDown)
	case more > surplus-1:
		c.scale *= scaleUp
	case c.scale < 1:
		c.scale = min(1, c.scale*scaleUp)
	}
	c.scale = min(max(c.scale, scaleMin), scaleMax)
	r.boundLocked()
	s := step{x: x, r: r}
	s.evictTo(r.bound.Load(), evictNow)
	s.end()
}
