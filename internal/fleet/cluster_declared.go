package fleet

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/text"
)

// A worker that the sources of one member declare is known to all: the others register it
// from SourceCluster, unless a source of their own declares it, and as long as somebody
// does.

const (
	// settleTime is how long a worker that another member declares has to be missing here
	// before it is registered: the own sources may declare it a little later.
	settleTime = 3 * time.Second
	// droppedTime is how long instead after a source here has stopped declaring it: the
	// others' will do so a little later.
	droppedTime = 30 * time.Second
)

// declarer is a source of another member.
type declarer struct{ member, source string }

// declaredDocument is a Declared, written down.
type declaredDocument struct {
	Worker   *workerDocument `json:"worker"`
	Identity string          `json:"identity,omitempty"`
	NotReady string          `json:"not_ready,omitempty"`
	Leaving  bool            `json:"leaving,omitempty"`
	LeaveBy  *time.Time      `json:"leave_by,omitempty"`
	Origin   string          `json:"origin,omitempty"`
}

func (f *Fleet) tellDeclaredLocked(source string, list []*declared) {
	if m := f.member; m != nil && source != SourceCluster {
		m.tellDeclaredLocked(source, list)
	}
}

// tellDeclaredLocked tells the other members what a source of this one declares.
func (m *membership) tellDeclaredLocked(source string, list []*declared) {
	told := m.told[source]
	if told == nil {
		told = map[string]Declared{}
		m.told[source] = told
	}
	named := make(map[string]bool, len(list))
	for _, d := range list {
		named[d.URL] = true
		if was, ok := told[d.URL]; ok && sameDeclared(&was, &d.Declared) {
			continue
		}
		told[d.URL] = d.Declared
		x := declaredDocument{
			Worker: documentOf(d.Worker), Identity: d.Identity, Leaving: d.Leaving,
			NotReady: text.Clip(d.NotReady, maxNameLen), Origin: text.Clip(d.Origin, maxNameLen),
		}
		if !d.LeaveBy.IsZero() {
			x.LeaveBy = &d.LeaveBy
		}
		body, err := json.Marshal(&x)
		if err != nil {
			panic("BUG: a declared worker cannot be written: " + err.Error())
		}
		m.declares = append(m.declares, cluster.Document{Key: d.URL, Source: source, Body: body})
	}
	for _, url := range slices.Sorted(maps.Keys(told)) {
		if !named[url] {
			delete(told, url)
			m.declares = append(m.declares, cluster.Document{Key: url, Source: source, Deleted: true})
		}
	}
	if len(m.declares) > 0 {
		m.soon()
	}
}

func sameDeclared(a, b *Declared) bool {
	return a.Identity == b.Identity && a.NotReady == b.NotReady && a.Leaving == b.Leaving && a.LeaveBy.Equal(b.LeaveBy) &&
		a.Origin == b.Origin && a.URL == b.URL && equalSpecs(&a.Worker, &b.Worker)
}

// droppedLocked notes that a source here has stopped declaring workers.
func (f *Fleet) droppedLocked(source string, gone []*Worker, now admission.Instant) {
	m := f.member
	if m == nil || source == SourceCluster {
		return
	}
	for url, at := range m.dropped {
		if now.Sub(at) > droppedTime {
			delete(m.dropped, url)
		}
	}
	for _, w := range gone {
		m.dropped[w.url] = now
		f.lookElsewhereLocked()
	}
}

// lookElsewhereLocked has the workers of SourceCluster looked at: one that others may declare
// has no owner here any more.
func (f *Fleet) lookElsewhereLocked() {
	if m := f.member; m != nil {
		m.look = true
		m.soon()
	}
}

// takeDeclared takes what a source of another member declares.
func (m *membership) takeDeclared(d *cluster.Document) {
	from := declarer{d.Origin, d.Source}
	m.reconcile = 0
	var x declaredDocument
	if !d.Deleted {
		err := json.Unmarshal(d.Body, &x)
		if err == nil && x.Worker != nil && x.Worker.URL == d.Key {
			if m.elsewhere[d.Key] == nil {
				m.elsewhere[d.Key] = map[declarer]Declared{}
			}
			m.elsewhere[d.Key][from] = x.declared(from)
			return
		}
		m.f.log.Warn("cluster: what another member declares of a worker cannot be used", "worker", d.Key, "member", d.Origin)
	}
	if delete(m.elsewhere[d.Key], from); len(m.elsewhere[d.Key]) == 0 {
		delete(m.elsewhere, d.Key)
	}
}

func (x *declaredDocument) declared(from declarer) Declared {
	d := Declared{Worker: x.Worker.Worker, Identity: x.Identity, NotReady: x.NotReady, Leaving: x.Leaving}
	if x.LeaveBy != nil {
		d.LeaveBy = *x.LeaveBy
	}
	d.Origin = from.source + " of " + from.member
	if x.Origin != "" {
		d.Origin += ": " + x.Origin
	}
	return d
}

// reconcileOthers registers what only other members declare, and removes what they declare
// no more.
func (m *membership) reconcileOthers(now admission.Instant) {
	m.reconcile = noInstant
	m.f.mu.Lock()
	list := m.othersLocked(now)
	m.f.mu.Unlock()
	err := m.f.Reconcile(m.f.ctx, SourceCluster, list)
	problem := ""
	if err != nil && m.f.ctx.Err() == nil {
		problem = text.Clip(strings.ReplaceAll(err.Error(), "\n", "; "), 500)
	}
	if problem != m.problem && problem != "" {
		m.f.log.Warn("cluster: workers that other routers declare cannot be registered here", "error", problem)
	}
	m.problem = problem
}

// othersLocked is what SourceCluster declares now.
func (m *membership) othersLocked(now admission.Instant) (list []Declared) {
	f := m.f
	for url := range m.missing {
		if m.elsewhere[url] == nil {
			delete(m.missing, url)
		}
	}
	for _, url := range slices.Sorted(maps.Keys(m.elsewhere)) {
		w := f.byURL[url]
		if w != nil && w.source != SourceCluster && (!w.draining || w.leaving) {
			delete(m.missing, url) // it has another owner
			continue
		}
		if w == nil || w.source != SourceCluster || w.draining && !w.leaving {
			since, ok := m.missing[url]
			if !ok {
				since, m.missing[url] = now, now
			}
			due := since.Add(settleTime)
			if at, ok := m.dropped[url]; ok {
				due = max(due, at.Add(droppedTime))
			}
			if now < due {
				m.reconcile = min(m.reconcile, due)
				continue
			}
		}
		list = append(list, oneOf(m.elsewhere[url]))
	}
	return list
}

// oneOf is what counts of what several sources declare of one worker: the same for all
// members. That it is ready, and stays, is what any of them says.
func oneOf(all map[declarer]Declared) (d Declared) {
	first := true
	for _, from := range slices.SortedFunc(maps.Keys(all), func(a, b declarer) int {
		return strings.Compare(a.member+"\x00"+a.source, b.member+"\x00"+b.source)
	}) {
		x := all[from]
		if first || d.Leaving && !x.Leaving || d.Leaving == x.Leaving && d.NotReady != "" && x.NotReady == "" {
			d, first = x, false
		}
	}
	return d
}
