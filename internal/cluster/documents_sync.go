package cluster

import (
	"cmp"
	"slices"
)

// hello is what this member tells of its documents when it opens a session: which it has
// seen. The other side answers with what is lacking here, and asks for what it lacks.
func (d *documents) hello() *Documents {
	clear(d.sessions)
	return &Documents{First: true, Last: true, Have: d.have(), Floor: d.floor, Ask: true}
}

// have is the last version seen of each writer.
func (d *documents) have() []Version {
	list := make([]Version, 0, len(d.seen)) // not nil
	for w, c := range d.seen {
		list = append(list, Version{c, w})
	}
	slices.SortFunc(list, func(a, b Version) int { return cmp.Compare(a.Writer, b.Writer) })
	return list
}

// close ends the session with a peer that is gone.
func (d *documents) close(peer Incarnation) { delete(d.sessions, peer) }

// receive takes what a peer sent in its session.
func (d *documents) receive(from Incarnation, x *Documents) {
	if from == d.m.o.Self.Incarnation {
		return
	}
	s := d.sessions[from]
	if s == nil {
		s = &docSession{}
		d.sessions[from] = s
	}
	if !s.answered && !x.Answer && d.m.keeper == nil {
		return // it was sent before the other side knew of this session
	}
	if x.Full && x.First {
		s.full, s.lacked = map[docName]struct{}{}, true
	}
	for i := range x.All {
		d.take(s, x.Full, &x.All[i])
	}
	if x.Full && x.Last && s.lacked {
		d.dropUnknown(s.full, x.Have, x.Floor)
		d.forgotten(s, x.Have)
		if x.Floor <= maxCounter {
			d.floor = max(d.floor, x.Floor)
		}
	}
	if x.Last {
		s.full, s.lacked = nil, false
	}
	if x.Answer && x.Last {
		s.answered = true
		for _, v := range x.Have {
			if v.Counter <= maxCounter {
				d.note(v)
			}
		}
	}
	if x.Ask {
		if x.Have == nil {
			x.Have = []Version{}
		}
		parts := d.lacking(x.Have, x.Floor)
		parts[len(parts)-1].Ask = d.m.keeper != nil // it asked first
		for _, part := range parts {
			d.send(from, part)
		}
		s.sent, s.ready, s.behind = d.change, true, false
	}
	d.flush()
}

// take takes one document that a peer sent.
func (d *documents) take(s *docSession, full bool, x *Document) {
	if x.Key == "" || len(x.Body) > maxDocumentSize || x.Version.Writer == 0 || x.Version.Counter > maxCounter {
		d.refused++
		return
	}
	if full && s.full != nil {
		s.full[x.name()] = struct{}{}
	}
	k := d.byName[x.name()]
	switch {
	case k == nil && (d.seen[x.Version.Writer] >= x.Version.Counter || d.floor >= x.Version.Counter):
		// The peer has it, unless it sent this before it heard of the deletion.
		s.behind = s.behind || !x.Deleted && d.seen[x.Version.Writer] < x.Version.Counter
		d.note(x.Version)
		return // it was deleted since, and that was forgotten here
	case k != nil && k.Version.Compare(x.Version) >= 0:
		d.note(x.Version)
		return
	}
	x.Restored = false
	if k = d.keep(*x); k == nil {
		return
	}
	if x.Source != "" && x.Origin == d.m.o.Self.Name {
		if _, mine := d.own[x.name()]; mine {
			d.disputed = append(d.disputed, x.name())
			return // the fleet knows what its sources declare
		}
	}
	d.tell(k)
}

// dropUnknown drops what a peer does not have, of whose documents all were told, though it
// has seen it: it was deleted.
func (d *documents) dropUnknown(told map[docName]struct{}, have []Version, floor uint64) {
	seen := make(map[Incarnation]uint64, len(have))
	for _, v := range have {
		seen[v.Writer] = v.Counter
	}
	for _, k := range d.sorted() {
		if _, ok := told[k.name()]; ok || seen[k.Version.Writer] < k.Version.Counter && floor < k.Version.Counter {
			continue
		}
		d.recent.Remove(&k.node)
		delete(d.byName, k.name())
		if k.Deleted {
			d.deleted--
			continue
		}
		if _, mine := d.own[k.name()]; mine {
			d.disputed = append(d.disputed, k.name())
			continue
		}
		gone := *k
		gone.Deleted, gone.Body = true, nil
		d.tell(&gone)
	}
}

// forgotten takes into account that somewhere among the versions of have something may be
// that was deleted and forgotten: who has not seen them all needs all documents.
func (d *documents) forgotten(from *docSession, have []Version) {
	for _, v := range have {
		if v.Counter <= maxCounter {
			d.drop(v)
		}
	}
	for _, s := range d.sessions {
		s.behind = s.behind || s.ready && s != from
	}
}

func (d *documents) sorted() []*document {
	list := make([]*document, 0, len(d.byName))
	for _, k := range d.byName {
		list = append(list, k)
	}
	slices.SortFunc(list, func(a, b *document) int { return a.Version.Compare(b.Version) })
	return list
}

// lacking is what somebody lacks who has seen the versions of have (nil: who needs all), with
// what this member has seen, in the order of versions.
func (d *documents) lacking(have []Version, floor uint64) []Documents {
	seen := make(map[Incarnation]uint64, len(have))
	for _, v := range have {
		seen[v.Writer] = v.Counter
	}
	full := have == nil || floor < d.floor
	for w, c := range d.dropped {
		full = full || seen[w] < c
	}
	var list []Document
	for _, k := range d.sorted() {
		if full || k.Version.Counter > seen[k.Version.Writer] {
			list = append(list, k.Document)
		}
	}
	parts := inParts(list, full)
	for i := range parts {
		parts[i].Answer = true
	}
	parts[len(parts)-1].Have, parts[len(parts)-1].Floor = d.have(), d.floor
	return parts
}

// inParts cuts a list into messages of bounded size, one at least.
func inParts(list []Document, full bool) []Documents {
	parts := []Documents{{Full: full, First: true}}
	size := 0
	for i := range list {
		n := len(list[i].Body) + len(list[i].Key) + len(list[i].Origin) + 64
		if size += n; size > maxDocumentsPart && len(parts[len(parts)-1].All) > 0 {
			parts = append(parts, Documents{Full: full})
			size = n
		}
		last := &parts[len(parts)-1]
		last.All = append(last.All, list[i])
	}
	parts[len(parts)-1].Last = true
	return parts
}

func (d *documents) send(to Incarnation, x Documents) {
	it := Item{Kind: ItemDocuments, Body: &x}
	if d.m.keeper != nil {
		d.m.toMember(to, it)
	} else if to == d.m.election.promised.Keeper {
		d.m.toKeeper(it)
	}
}

// maxCounter is beyond any counter that is ever reached.
const maxCounter = 1 << 62

// flush sends what changed to the peers whose sessions are ready.
func (d *documents) flush() {
	d.claim()
	for _, p := range d.m.order {
		s := d.sessions[p.Incarnation]
		if s == nil || !s.ready || s.sent == d.change && !s.behind {
			continue
		}
		if s.behind {
			s.behind, s.sent = false, d.change
			for _, part := range d.lacking(nil, 0) {
				d.send(p.Incarnation, part)
			}
			continue
		}
		var list []Document
		n := d.recent.Last()
		for n != nil && n.Value.changed > s.sent {
			if n.Value.Version.Writer != p.Incarnation {
				list = append(list, n.Value.Document)
			}
			n = n.Prev()
		}
		s.sent = d.change
		if len(list) == 0 {
			continue
		}
		slices.Reverse(list)
		for _, part := range inParts(list, false) {
			d.send(p.Incarnation, part)
		}
	}
}
