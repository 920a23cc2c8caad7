package replay

import (
	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/kv"
)

// feed is an index of what the workers hold, and the workers' ranks in it.
type feed struct {
	index *kv.Index
	group kv.Group
	ranks []*kv.Rank // by worker
	found []kv.Holder
}

// newFeed makes an index. blocks is what a worker is known to hold at most; 0: not known.
func newFeed(o *Options, blocks int) feed {
	f := feed{index: kv.New(kv.Options{}), group: kv.Group(admission.RolePrefill)}
	if o.Aggregated {
		f.group = kv.Group(admission.RoleRegular)
	}
	for i := range o.Workers {
		f.ranks = append(f.ranks, f.index.Add(kv.RankSpec{Group: f.group, Blocks: blocks, Data: i}))
	}
	return f
}

// match returns the workers that hold most of a prompt. The slice is valid until the next
// call.
func (f *feed) match(blocks []kv.Key) []kv.Holder {
	f.found = f.index.Match(blocks, f.group, nil, f.found[:0])
	return f.found
}

// exactFeed follows the events of engines. All routers hear them.
type exactFeed struct{ feed }

func newExactFeed(s *sim) *exactFeed { return &exactFeed{newFeed(s.opts, 0)} }

// tell takes an engine's events: what it has now and what went.
func (f *exactFeed) tell(worker int, stored, evicted []kv.Key) {
	f.index.Store(f.ranks[worker], stored)
	f.index.Remove(f.ranks[worker], evicted)
}

// approximateFeed knows what one router sent, and how much a worker can hold.
type approximateFeed struct{ feed }

func newApproximateFeed(s *sim) *approximateFeed {
	return &approximateFeed{newFeed(s.opts, s.opts.CacheBlocks)}
}

// sent records a prompt that was sent to a worker.
func (f *approximateFeed) sent(worker int, blocks []kv.Key) {
	f.index.Record(f.ranks[worker], blocks)
}
