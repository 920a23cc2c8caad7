package node

import (
	"context"
	"log/slog"
	"sync"

	"github.com/sluice-router/sluice/internal/cluster"
)

// report is what is to be told to the log and to the fleet, in order.
type report struct {
	events    []cluster.Event
	documents []cluster.Document
	ranks     bool
}

// maxEvents bounds the lines that wait for the log; more are dropped.
const maxEvents = 1024

// tellLocked keeps what an output has for runReports.
func (n *Node) tellLocked(out *cluster.Output) {
	if out.RanksChanged {
		clear(n.pools)
	}
	if len(out.Events) == 0 && len(out.Documents) == 0 && !out.RanksChanged {
		return
	}
	r := &n.report
	if len(r.events) < maxEvents {
		r.events = append(r.events, out.Events...)
	}
	r.documents = append(r.documents, out.Documents...)
	r.ranks = r.ranks || out.RanksChanged
	select {
	case n.reported <- struct{}{}:
	default: // it was told before
	}
}

// runReports tells what came together, until the node is closed.
func (n *Node) runReports() {
	var rows []cluster.Row
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.reported:
		}
		n.mu.Lock()
		r := n.report
		n.report = report{}
		n.mu.Unlock()
		for _, e := range r.events {
			n.log.Log(context.Background(), slog.Level(e.Level), e.Message, e.Args...)
		}
		if len(r.documents) > 0 && n.o.Documents != nil {
			n.o.Documents(r.documents)
		}
		if r.ranks && n.o.Ranks != nil {
			rows = n.rows(rows[:0])
			n.o.Ranks(func(f func(*cluster.Row)) {
				for i := range rows {
					f(&rows[i])
				}
			})
			clear(rows) // specs of ranks that go are not kept
		}
	}
}

// rows appends the keeper's table as it is known here. Requests wait for the lock, and so
// only the copy is made under it: its specs and masks never change.
func (n *Node) rows(to []cluster.Row) []cluster.Row {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.m.Rows() {
		to = append(to, *r)
	}
	return to
}

// onces tells things apart that were told before, some at most.
type onces struct {
	mu   sync.Mutex
	told map[string]bool
}

const maxOnces = 256

func (o *onces) first(what string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.told[what] {
		return false
	}
	if len(o.told) >= maxOnces || o.told == nil {
		o.told = map[string]bool{}
	}
	o.told[what] = true
	return true
}
