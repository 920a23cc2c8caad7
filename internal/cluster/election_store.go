package cluster

import (
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
)

// storeState is what a member knows of the record, and its operation on the store.
type storeState struct {
	op     *StoreOp // in flight, or nil
	sentAt admission.Instant
	ids    uint64

	known    bool // it was read
	record   *Record
	revision string
	// changed is when the revision was first seen, unchanged when the last reading or writing
	// began that saw it: it did not change in between.
	changed, unchanged admission.Instant

	stale   bool              // it is to be read at once, and before anything is written
	nextTry admission.Instant // after a failure, not before
	failed  int               // operations, in a row
	readDue admission.Instant
	renewAt admission.Instant
	budget  admission.Instant // for writes, see mayWrite

	read, written admission.Instant // when they succeeded last; zero: never
	err           storeError
}

// storeError is what operators are told of a store that does not answer.
type storeError struct {
	last error
	told bool
}

func (s *storeError) text() string {
	if s.last == nil {
		return ""
	}
	return s.last.Error()
}

func (s *storeState) readAt() admission.Instant    { return orNever(s.read) }
func (s *storeState) writtenAt() admission.Instant { return orNever(s.written) }

func orNever(t admission.Instant) admission.Instant {
	if t == 0 {
		return -1
	}
	return t
}

// access starts what is due at the store, one thing at a time.
func (e *election) access() {
	s, now := &e.store, e.m.now
	if s.op != nil || now < s.nextTry || e.left {
		return
	}
	switch {
	case s.stale || !s.known:
		e.readRecord()
	case e.m.keeper != nil:
		e.renew()
	case e.stand.due(now):
		e.standNow()
	case now >= s.readDue:
		e.readRecord()
	}
}

func (e *election) readRecord() {
	s := &e.store
	period := e.m.o.ReadStore
	if e.m.keeper == nil && !e.hears() {
		period /= 4 // what it says is waited for
	}
	s.readDue = e.m.now.Add(period)
	e.m.counters.StoreReads++
	e.operate(StoreOp{})
}

func (e *election) operate(op StoreOp) {
	s := &e.store
	s.ids++
	op.ID = s.ids
	s.op, s.sentAt = &op, e.m.now
	e.m.out.Store = &op
}

// renew writes the record of this keeper's epoch when it is time, or when another list is
// wanted, or hands over by it.
func (e *election) renew() {
	s, now := &e.store, e.m.now
	want := e.wanted()
	due := now >= s.renewAt || e.handTo != 0
	if !due && !sameMembers(want, e.hadList) {
		due = true
	}
	if !due || !e.mayWrite(e.handTo != 0) {
		return
	}
	epoch := e.promised
	if e.handTo != 0 {
		epoch = Epoch{Number: max(e.highest, e.promised.Number) + 1, Keeper: e.handTo}
	}
	e.tried = append(e.tried, want...)
	e.write(Record{Epoch: epoch, Members: want})
}

// mayWrite keeps writes below one in WriteStore·4/5 on average (one a second by default),
// three at once at most, and a tenth of that apart, so that a burst of joins is one write.
func (e *election) mayWrite(always bool) bool {
	s, now := &e.store, e.m.now
	each := admission.Instant(e.m.o.WriteStore) * 4 / 5
	if !always && s.budget-now > 2*each {
		return false
	}
	s.budget = max(s.budget, now) + each
	return true
}

// write replaces the record, if it is still the one that was seen last.
func (e *election) write(r Record) {
	s := &e.store
	r.Format, r.Cluster, r.Ended = recordFormat, e.m.o.Cluster, slices.Clone(e.roster.ended)
	if s.record != nil {
		r.Renewals = s.record.Renewals
	}
	r.Renewals++
	e.m.counters.StoreWrites++
	e.operate(StoreOp{Write: true, Record: r, Revision: s.revision})
}

const (
	recordFormat = 1
	// maxMembers bounds the list of a cluster, and the peers of a member.
	maxMembers = 64
	maxEnded   = 128
	maxName    = 255
)

// stored takes the result of a StoreOp.
func (e *election) stored(r StoreResult) {
	s, now := &e.store, e.m.now
	op := s.op
	if op == nil || r.ID != op.ID {
		return
	}
	s.op = nil
	switch {
	case r.Err != nil:
		e.storeFailed(r.Err)
	case op.Write && r.Conflict:
		e.m.counters.StoreConflicts++
		e.storeAnswered()
		s.stale = true
		if e.m.keeper == nil {
			e.stand.since, e.stand.now = never, false
		}
	case op.Write:
		e.storeAnswered()
		s.written = now
		e.saw(&op.Record, r.Revision)
		e.wroteRecord(op)
	default:
		e.storeAnswered()
		s.read = now
		if why := e.unreadable(r.Record); why != "" {
			e.storeFailed(unreadableError(why))
			return
		}
		s.stale = false
		e.saw(r.Record, r.Revision)
		e.readOf(r.Record)
	}
}

type unreadableError string

func (u unreadableError) Error() string { return "the record in the store is not usable: " + string(u) }

func (e *election) storeFailed(err error) {
	s := &e.store
	e.m.counters.StoreErrors++
	s.stale = true // a write may have happened
	s.nextTry = e.m.now.Add(min(e.m.o.ReadStore, e.m.o.ReadStore/8<<min(s.failed, 3)))
	s.failed++
	s.err.last = err
	if !s.err.told {
		s.err.told = true
		e.m.event(LevelWarn, "cluster: the record in the store cannot be read or written; until it can, nobody joins and no keeper is elected, and all else goes on", "error", err)
	}
}

func (e *election) storeAnswered() {
	s := &e.store
	s.failed, s.nextTry = 0, 0
	if s.err.last != nil {
		s.err = storeError{}
		e.m.event(LevelInfo, "cluster: the record in the store is read again")
	}
}

// unreadable tells why a record cannot be used.
func (e *election) unreadable(r *Record) string {
	switch {
	case r == nil:
		return ""
	case r.Format != recordFormat:
		return "it has another format; a newer version wrote it"
	case r.Cluster != e.m.o.Cluster:
		return "it is that of the cluster " + clip(r.Cluster)
	case len(r.Members) > maxMembers || len(r.Ended) > maxEnded || r.Epoch.Number > 1<<62:
		return "it is too large"
	}
	seen := map[Incarnation]bool{}
	for _, x := range r.Members {
		if !usable(x) || seen[x.Incarnation] {
			return "a member in it has no name, no incarnation, or comes twice"
		}
		seen[x.Incarnation] = true
	}
	return ""
}

func usable(x Member) bool {
	return x.Incarnation != 0 && x.Name != "" && len(x.Name) <= maxName && len(x.Address) <= maxName && len(x.Build) <= maxName
}

func clip(s string) string { return s[:min(len(s), maxName)] }

// saw notes which record the store has.
func (e *election) saw(r *Record, revision string) {
	s := &e.store
	if !s.known || revision != s.revision {
		s.changed = e.m.now
	}
	s.known, s.record, s.revision, s.unchanged = true, r, revision, s.sentAt
	if r != nil {
		e.highest = max(e.highest, r.Epoch.Number)
		e.roster.know(r.Epoch, r.Members)
	}
}

// expired tells whether nobody has written the record for a lease.
func (s *storeState) expired(lease time.Duration) bool {
	return s.known && s.unchanged-s.changed >= admission.Instant(lease)
}

// notRenewed tells that a keeper which lives and reaches the store would have written the
// record meanwhile.
func (e *election) notRenewed() bool {
	return e.store.expired(min(2*e.m.o.WriteStore, e.m.o.Lease))
}

// wroteRecord goes on after a successful write.
func (e *election) wroteRecord(op *StoreOp) {
	r, self := &op.Record, e.m.o.Self.Incarnation
	switch {
	case e.m.keeper != nil && r.Epoch == e.m.keeper.epoch:
		e.isOwn(r, e.store.sentAt)
	case e.m.keeper != nil && r.Epoch.Keeper != self:
		e.handedOver(r)
	case e.m.keeper == nil && r.Epoch.Keeper == self && r.Epoch.Compare(e.promised) > 0 && e.banned == "":
		e.m.counters.Elected++
		e.takeOffice(r, e.store.sentAt, nil)
		e.m.keeper.listed(r.Members)
	}
}

// isOwn notes that the store has the record of this keeper's epoch, whose writing began at a
// time.
func (e *election) isOwn(r *Record, wrote admission.Instant) {
	e.wrote = max(e.wrote, wrote)
	e.hadList, e.tried = r.Members, nil
	e.store.renewAt = wrote.Add(e.m.o.WriteStore)
	e.m.keeper.listed(r.Members)
}

// readOf goes on after a reading.
func (e *election) readOf(r *Record) {
	k := e.m.keeper
	if r != nil {
		for _, x := range r.Ended {
			e.markEnded(x, "the record says so")
		}
	}
	switch {
	case k != nil && r != nil && e.handTo != 0 && r.Epoch.Keeper == e.handTo && r.Epoch.Compare(k.epoch) > 0:
		e.handedOver(r) // the answer to the writing was lost
	case k != nil && r != nil && r.Epoch.Compare(k.epoch) > 0:
		e.resign("the store has a later epoch", "its_epoch", r.Epoch)
	case k != nil && r != nil && r.Epoch == k.epoch:
		// What was written and not confirmed has happened, or not: it is written once more.
		e.hadList = r.Members
		e.store.renewAt = e.m.now
	case k != nil:
		// The store lost the record, or went back to an old one.
		e.m.event(LevelWarn, "cluster: the store has lost this keeper's record; it is written anew", "epoch", k.epoch)
		e.store.renewAt = e.m.now
	case r != nil && r.Epoch.Keeper == e.m.o.Self.Incarnation && r.Epoch.Compare(e.promised) > 0 && e.banned == "":
		// The own writing that was not confirmed, or an office handed over by one that is gone.
		e.m.counters.TookOver++
		before := e.promised.Keeper
		e.takeOffice(r, -1, nil)
		e.m.keeper.before = before
	}
	if r != nil {
		e.meet(r.Members)
	}
}

// listed are the other members that the record has, and that have not ended.
func (e *election) listed() (others []Member) {
	list := e.hadList
	if e.m.keeper == nil && e.store.record != nil {
		list = e.store.record.Members
	}
	for _, x := range list {
		if x.Incarnation != e.m.o.Self.Incarnation && !e.hasEnded(x.Incarnation) {
			others = append(others, x)
		}
	}
	return others
}

// isListed tells whether the record has this member.
func (e *election) isListed() bool {
	r := e.store.record
	return r != nil && slices.ContainsFunc(r.Members, func(x Member) bool { return x.Incarnation == e.m.o.Self.Incarnation })
}

// wanted is the list that the record is to have.
func (e *election) wanted() []Member {
	if want := e.m.keeper.wanted(); want != nil {
		return want
	}
	return e.hadList
}

func sameMembers(a, b []Member) bool { return slices.Equal(a, b) }
