package cluster

import (
	"math"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/heap"
	"github.com/sluice-router/sluice/internal/list"
)

// Each wait ends on time here, whatever becomes of the keeper. Mostly the keeper's word
// comes first: most waits are over before their bound is even worked out.

const (
	// youngFor is how long after its arrival the bound of a ticket is worked out.
	youngFor = 50 * time.Millisecond
	// grace is what a keeper that is heard has to end a wait by itself.
	grace = 50 * time.Millisecond
	// neverQueueFor is how long a request that may not queue waits for a keeper.
	neverQueueFor = 200 * time.Millisecond
)

// bound is when a wait ends, and for which limit.
type bound struct {
	at     admission.Instant
	reason admission.Reason
	kind   admission.LimitKind
	limit  int64
	may    bool // only if no keeper is heard
}

// waits are the tickets that have no decision yet.
type waits struct {
	young  list.List[*ticket] // by arrival; their bounds are not worked out
	bounds heap.Heap[*ticket]
}

func (w *waits) len() int { return w.young.Len() + w.bounds.Len() }

func (w *waits) add(t *ticket) { w.young.PushBack(&t.young) }

// set gives t a bound.
func (w *waits) set(t *ticket, x bound) {
	t.bound = x
	switch {
	case t.pos >= 0:
		w.bounds.Fix(t.pos)
	default:
		w.young.Remove(&t.young)
		w.bounds.Push(t)
	}
}

func (w *waits) remove(t *ticket) {
	if t.pos >= 0 {
		w.bounds.Remove(t.pos)
	} else if t.young.Listed() {
		w.young.Remove(&t.young)
	}
}

func (w *waits) next() admission.Instant {
	next := never
	if n := w.young.First(); n != nil {
		next = n.Value.since.Add(youngFor)
	}
	if w.bounds.Len() > 0 {
		next = min(next, w.bounds.First().bound.at)
	}
	return next
}

// all are those that wait, by number.
func (w *waits) all() []*ticket {
	all := slices.Clone(w.bounds.All())
	for n := w.young.First(); n != nil; n = n.Next() {
		all = append(all, n.Value)
	}
	slices.SortFunc(all, byNumber)
	return all
}

func byNumber(a, b *ticket) int {
	if a.number < b.number {
		return -1
	}
	return b2i(a.number > b.number)
}

// Before implements heap.Element.
func (t *ticket) Before(o *ticket) bool {
	if t.bound.at != o.bound.at {
		return t.bound.at < o.bound.at
	}
	return t.number < o.number
}

// SetIndex implements heap.Element.
func (t *ticket) SetIndex(i int) { t.pos = i }

// endWaits works out the bounds that are to be known by now, and ends waits.
func (b *member) endWaits() {
	if b.alone.on {
		return // the own core ends them
	}
	now := b.m.now
	for n := b.waits.young.First(); n != nil && now-n.Value.since >= admission.Instant(youngFor); n = b.waits.young.First() {
		b.waits.set(n.Value, b.boundOf(n.Value))
	}
	for b.waits.bounds.Len() > 0 {
		t := b.waits.bounds.First()
		if t.bound.at > now {
			return
		}
		b.endWaitOf(t)
	}
}

// endWaitOf ends the wait of t, whose bound has come. One that may not queue waits on while a
// keeper is heard: it is about to be granted or refused.
func (b *member) endWaitOf(t *ticket) {
	x := t.bound
	if x.may && b.hasKeeper(neverQueueFor) {
		x.at = b.m.now.Add(neverQueueFor / 2)
		if y := b.limitOf(t); y.at < x.at {
			x = y
			x.at = x.at.Add(grace)
		}
		if b.waits.set(t, x); x.at > b.m.now {
			return
		}
	}
	b.cancel(t, b.bounded(t))
}

// boundOf is when the wait of t ends, with what a keeper has to end it by itself.
func (b *member) boundOf(t *ticket) bound {
	x := b.limitOf(t)
	if x.at != never && b.hasKeeper(b.m.o.Silent) {
		x.at = x.at.Add(grace)
	}
	if t.queued == nil {
		if y, ok := b.neverQueues(t); ok && y.at < x.at {
			return y
		}
	}
	return x
}

// limitOf is when the first of the limits on the wait of t is reached.
func (b *member) limitOf(t *ticket) bound {
	x := bound{at: never}
	first := func(y bound) {
		if y.at < x.at {
			x = y
		}
	}
	r := &t.request
	if q := t.queued; q != nil {
		if q.Left > 0 {
			at := t.queuedAt.Add(q.Left)
			if q.Limit > 0 { // the way to the keeper and back was waiting, too
				at = min(at, t.since.Add(time.Duration(q.Limit)-t.waited))
			}
			first(bound{at: at, reason: q.Reason, kind: q.Kind, limit: q.Limit})
		}
	} else {
		s := b.settings()
		if d := s.Limits.QueueTimeout; d > 0 {
			first(bound{at: t.since.Add(d - t.waited), reason: admission.QueueTimeout, kind: admission.LimitNone, limit: int64(d)})
		}
		if cl, _ := classOf(s, r); cl != nil && cl.MaxWait > 0 {
			first(bound{at: t.since.Add(cl.MaxWait - t.waited), reason: admission.DeadlineExceeded, kind: admission.LimitClassWait, limit: int64(cl.MaxWait)})
		}
	}
	if d := r.ClassDeadline; d != 0 {
		first(bound{at: d, reason: admission.DeadlineExceeded, kind: admission.LimitClassWait, limit: max(int64(d.Sub(t.arrival)), 0)})
	}
	if d := r.Deadline; d != 0 {
		first(bound{at: d, reason: admission.DeadlineExceeded, kind: admission.LimitClientWait, limit: max(int64(d.Sub(t.arrival)), 0)})
	}
	return x
}

// neverQueues tells whether t is one that may not wait, and until when it waits for a
// keeper all the same.
func (b *member) neverQueues(t *ticket) (x bound, ok bool) {
	s := b.settings()
	x = bound{at: t.since.Add(neverQueueFor), kind: admission.LimitRequests, may: true}
	cl, _ := classOf(s, &t.request)
	if cl != nil {
		for _, l := range [...]struct {
			limit *float64
			kind  admission.LimitKind
		}{
			{cl.RequestLimitPerWorker, admission.LimitRequests},
			{cl.RawTokenLimitPerWorker, admission.LimitRawTokens},
			{cl.CachedTokenLimitPerWorker, admission.LimitCachedTokens},
		} {
			if l.limit != nil && *l.limit <= 0 {
				x.reason, x.kind = admission.ClassQueueFull, l.kind
				return x, true
			}
		}
	}
	x.reason = admission.QueueFull
	return x, s.Limits.QueueSize <= 0
}

// bounded is the refusal by the bound of t.
func (b *member) bounded(t *ticket) *admission.Refusal {
	x := b.refusal(t, t.bound.reason)
	x.LimitKind, x.Limit = t.bound.kind, t.bound.limit
	if t.queued != nil {
		x.PrefillSlots = t.queued.Slots
	}
	return x
}

// refusal is one that is made here, of a request that waits.
func (b *member) refusal(t *ticket, why admission.Reason) *admission.Refusal {
	if t.request.Retry && why != admission.Draining {
		why = admission.RetryRefused // the client is owed the failure of the attempt before
	}
	s := b.settings()
	x := &admission.Refusal{
		Reason: why, Class: defaultClass, Depth: max(b.waits.len()-1, 0), Waited: t.waited + b.m.now.Sub(t.since),
		PrefillSlots: s.Limits.PrefillSlots > 0, RetryAfter: b.retryAfter(why),
	}
	if q := t.queued; q != nil {
		x.Class, x.Resource = q.Class, q.Lacked
	} else if cl, name := classOf(s, &t.request); cl != nil {
		x.Class = name
	}
	return x
}

// retryAfter is what is left of the lease of the keeper that was heard last.
func (b *member) retryAfter(why admission.Reason) time.Duration {
	left := time.Duration(0)
	if b.heardAt >= 0 && why != admission.Draining {
		left = b.heardAt.Add(b.m.o.Lease).Sub(b.m.now)
	}
	secs := min(max(math.Ceil(left.Seconds()), 1), 60)
	return time.Duration(secs) * time.Second
}

const defaultClass = "default"

// classOf is the class of a request by settings, and its name; nil: the one that there is
// without a class file.
func classOf(s *admission.Settings, r *admission.Request) (cl *admission.Class, name string) {
	if s.Classes == nil {
		return nil, defaultClass
	}
	p := s.Classes.Models[r.Target.Model]
	if p == nil {
		p = s.Classes.Root
	}
	if p == nil || len(p.Classes) == 0 {
		return nil, defaultClass
	}
	for i := range p.Classes {
		if c := &p.Classes[i]; c.Family == "" && r.Class != "" && c.Name == r.Class {
			return c, c.Name
		}
	}
	uncached := max(r.PromptTokens-max(r.CachedTokens, 0), 0)
	bucket := ""
	for _, x := range p.Buckets {
		if bucket == "" || x.MinTokens <= uncached {
			bucket = x.Name
		}
	}
	cell := func(family string) *admission.Class {
		for i := range p.Classes {
			if c := &p.Classes[i]; family != "" && c.Family == family && c.Bucket == bucket {
				return c
			}
		}
		return nil
	}
	for _, family := range [...]string{r.Class, p.DefaultFamily} {
		if c := cell(family); c != nil {
			return c, c.Name
		}
	}
	return &p.Classes[0], p.Classes[0].Name
}
