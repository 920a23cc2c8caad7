package kv

import "slices"

// aside keeps blocks whose parents are not known: engines may tell of them in another order,
// and some parents are never told. The oldest go for new ones.
type aside struct {
	runs   []run
	blocks int
}

const (
	asideRuns   = 128
	asideBlocks = 1024
	// What a run and a block take.
	asideRunCost, asideBlockCost = 96, 24
)

func asideCost(r *run) int64 { return asideRunCost + asideBlockCost*int64(cap(r.hashes)) }

// add keeps a copy of a run. It returns what memory that takes, and how many blocks are lost.
func (a *aside) add(r run) (bytes int64, lost int) {
	for len(a.runs) > 0 && (len(a.runs) >= asideRuns || a.blocks+len(r.hashes) > asideBlocks) {
		lost += len(a.runs[0].hashes)
		bytes -= a.delete(0)
	}
	r.hashes, r.contents = slices.Clip(slices.Clone(r.hashes)), slices.Clip(slices.Clone(r.contents))
	a.runs = append(a.runs, r)
	a.blocks += len(r.hashes)
	return bytes + asideCost(&r), lost
}

func (a *aside) delete(i int) (bytes int64) {
	bytes = asideCost(&a.runs[i])
	a.blocks -= len(a.runs[i].hashes)
	a.runs = slices.Delete(a.runs, i, i+1)
	return bytes
}

// take takes out a run whose parent is in set.
func (a *aside) take(set *set) (r run, bytes int64, ok bool) {
	for i := range a.runs {
		if set.find(a.runs[i].parent) != 0 {
			r = a.runs[i]
			return r, a.delete(i), true
		}
	}
	return r, 0, false
}

// remove forgets a block and those after it. It returns what memory that gives back.
func (a *aside) remove(hash uint64) (bytes int64) {
	for i := 0; i < len(a.runs); i++ {
		r := &a.runs[i]
		j := slices.Index(r.hashes, hash)
		if j < 0 {
			continue
		}
		was := asideCost(r)
		if j == 0 {
			bytes += a.delete(i)
			i--
			continue
		}
		a.blocks -= len(r.hashes) - j
		r.hashes, r.contents = slices.Clone(r.hashes[:j]), slices.Clone(r.contents[:j])
		bytes += was - asideCost(r)
	}
	return bytes
}

// clear forgets all.
func (a *aside) clear() (bytes int64) {
	for i := range a.runs {
		bytes += asideCost(&a.runs[i])
	}
	*a = aside{}
	return bytes
}
