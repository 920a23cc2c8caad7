package admission

import "slices"

// maxBars bounds the barred pairs; the oldest makes place for a new one.
const maxBars = 64

// bar is a pair of ranks that is not granted, though both work with others.
type bar struct{ prefill, decode *Rank }

// bar keeps a pair from new grants, until unbar or until one of the ranks is
// removed. What runs on it goes on. A request for which no other pair of
// candidates is left has it all the same.
func (c *Core) bar(p, d *Rank) {
	b := bar{p, d}
	if p == nil || d == nil || !p.present || !d.present || p.role != RolePrefill || d.role != RoleDecode || slices.Contains(c.bars, b) {
		return
	}
	if len(c.bars) == maxBars {
		c.unbar(c.bars[0].prefill, c.bars[0].decode)
	}
	c.bars = append(c.bars, b)
	p.barred = append(p.barred, d)
}

func (c *Core) unbar(p, d *Rank) {
	at := slices.Index(c.bars, bar{p, d})
	if at < 0 {
		return
	}
	c.bars = slices.Delete(c.bars, at, at+1)
	p.barred = slices.DeleteFunc(p.barred, func(r *Rank) bool { return r == d })
}

// unbarAll forgets the bars of a rank that is removed.
func (c *Core) unbarAll(r *Rank) {
	for i := len(c.bars) - 1; i >= 0; i-- {
		if b := c.bars[i]; b.prefill == r || b.decode == r {
			c.unbar(b.prefill, b.decode)
		}
	}
}

// dropBarred takes from scratchP the ranks that are barred with every rank in
// scratchD that could follow them.
func (c *Core) dropBarred(t *Target) {
	for i, b := range c.bars {
		p := b.prefill
		if !c.scratchP.has(p.index) || slices.ContainsFunc(c.bars[:i], func(o bar) bool { return o.prefill == p }) {
			continue
		}
		group := c.groups[p.groupID]
		if t.topology == TopologyRequired {
			group = c.domains[p.domainID]
		}
		left := 0
		for w, word := range c.scratchD {
			left += ones(word & group[w])
		}
		for _, d := range p.barred {
			if c.scratchD.has(d.index) && group.has(d.index) {
				left--
			}
		}
		if left == 0 {
			c.scratchP.clear(p.index)
		}
	}
}
