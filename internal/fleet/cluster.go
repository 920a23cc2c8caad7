package fleet

import (
	"sync"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
)

// SourceCluster is the source of workers that other members of the router's cluster
// declare, and that no source of this one does.
const SourceCluster = "cluster"

// Cluster is the cluster whose member the router is, as the fleet tells it what it knows.
// Its methods do not wait for others.
type Cluster interface {
	// Declare tells the other members what was ordered of workers by request, and what the
	// sources of this one declare. It sets the versions.
	Declare([]cluster.Document)
	// Tried tells what came lately of checks and requests, of ranks where that has changed.
	Tried([]cluster.RankTrial)
}

// membership is what a fleet knows as that of a member of a cluster. It has a goroutine of
// its own, which tells the others what changed here and puts in force what they tell;
// cluster_orders.go has what was ordered by request, cluster_declared.go what sources
// declare, cluster_trials.go how ranks were tried, cluster_view.go what the keeper knows of
// ranks.
type membership struct {
	// immutable
	f    *Fleet
	to   Cluster
	self cluster.Member
	wake chan struct{} // of one
	done chan struct{}
	tick *event // wakes it, when something is due

	view clusterView

	incoming incoming

	// guarded by Fleet.mu
	orders   map[string]order // by URL: the last, of whatever member
	known    map[string]string
	changed  map[string]bool                // URLs for which something was ordered here
	restored map[string]bool                // those that were read from a file
	told     map[string]map[string]Declared // by source and URL: what was told of its workers
	declares []cluster.Document             // to be told
	dropped  map[string]admission.Instant   // by URL: when a source here stopped declaring it
	look     bool                           // a worker went that others may declare

	// owned by its goroutine
	versions  map[string]cluster.Version       // of what was ordered of workers, by URL
	elsewhere map[string]map[declarer]Declared // by URL: what others declare
	missing   map[string]admission.Instant     // since when a worker that they declare is not here
	reconcile admission.Instant                // when the workers of SourceCluster are looked at next
	problem   string                           // of that, as it was logged
	triedAt   admission.Instant
	trials    map[string]cluster.RankTrial
}

// incoming are documents that were not put in force yet.
type incoming struct {
	mu sync.Mutex
	// guarded by mu
	documents []cluster.Document
}

// membershipPause is how often a member looks at what is due.
const membershipPause = time.Second

// JoinCluster makes the fleet that of a member, before the first worker is added. What the
// other members tell of workers is handed to TakeDocuments and TakeRows.
func (f *Fleet) JoinCluster(to Cluster, self cluster.Member) {
	m := &membership{
		f: f, to: to, self: self, wake: make(chan struct{}, 1), done: make(chan struct{}),
		orders: map[string]order{}, known: map[string]string{}, changed: map[string]bool{}, restored: map[string]bool{},
		told: map[string]map[string]Declared{}, dropped: map[string]admission.Instant{},
		elsewhere: map[string]map[declarer]Declared{}, missing: map[string]admission.Instant{}, trials: map[string]cluster.RankTrial{},
		reconcile: noInstant, versions: map[string]cluster.Version{},
	}
	m.tick = newEvent(func(now admission.Instant) {
		m.soon()
		f.sched.set(m.tick, now.Add(membershipPause))
	})
	f.anyFailed.Store(true) // the others have to know of successes
	f.mu.Lock()
	f.member = m
	f.mu.Unlock()
	f.sched.set(m.tick, f.clock.Now())
	go m.run()
}

// noInstant is after all others.
const noInstant = admission.Instant(1<<63 - 1)

// soon wakes the membership's goroutine.
func (m *membership) soon() {
	select {
	case m.wake <- struct{}{}:
	default: // it is about to look
	}
}

func (m *membership) run() {
	defer close(m.done)
	for {
		select {
		case <-m.f.ctx.Done():
			return
		case <-m.wake:
		}
		m.tell()
		m.take()
		now := m.f.clock.Now()
		if now >= m.reconcile {
			m.reconcileOthers(now)
		}
		if now.Sub(m.triedAt) >= membershipPause {
			m.triedAt = now
			m.tellTrials(now)
		}
	}
}

// close waits for the goroutine, which ends with the fleet's context.
func (m *membership) close() {
	m.f.sched.drop(m.tick)
	<-m.done
}

// TakeDocuments takes what other members tell of workers, in order. It does not wait until
// that is in force.
func (f *Fleet) TakeDocuments(list []cluster.Document) {
	m := f.member
	m.incoming.mu.Lock()
	m.incoming.documents = append(m.incoming.documents, list...)
	m.incoming.mu.Unlock()
	m.soon()
}

// take puts in force what the others have told.
func (m *membership) take() {
	m.incoming.mu.Lock()
	list := m.incoming.documents
	m.incoming.documents = nil
	m.incoming.mu.Unlock()
	for i := range list {
		if list[i].Source == "" {
			m.takeOrder(&list[i])
		} else {
			m.takeDeclared(&list[i])
		}
	}
}

// tell tells the others what changed here.
func (m *membership) tell() {
	now := uint64(max(time.Now().UnixMilli(), 0))
	m.f.mu.Lock()
	list := append(m.declares, m.ordersLocked()...)
	m.declares = nil
	if m.look {
		m.look, m.reconcile = false, 0
	}
	m.f.mu.Unlock()
	if len(list) == 0 {
		return
	}
	for i := range list {
		list[i].Version.Counter = now
	}
	m.to.Declare(list)
	for i := range list {
		if d := &list[i]; d.Source == "" && d.Version.Writer != 0 {
			m.versions[d.Key] = d.Version
		}
	}
}
