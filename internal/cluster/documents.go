package cluster

import (
	"cmp"
	"maps"
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/list"
)

// Document is what one member says of one worker, for all members: what was ordered by hand
// (Source is empty), of which there is one for each worker, and what a source of discovery
// declares, one for each source and member. Of two of one name the higher version counts,
// whoever tells of it, in whatever order.
type Document struct {
	Key    string // the worker's URL
	Source string // of discovery; "": by hand
	Origin string // the name of the member whose source it is; "": by hand
	// Version is chosen by [Machine.Declare], higher than all that are known there and not
	// below the Counter that it came with.
	Version Version
	// Deleted: nothing is said any more. By hand: nothing was ordered, or that was taken back.
	Deleted bool
	// Restored is for Declare: it was read from a file, and counts where nobody has another.
	Restored bool
	Body     []byte // the fleet's, JSON
}

// Version orders what members said of one key.
type Version struct {
	Counter uint64
	Writer  Incarnation
}

// Compare is negative when v is lower than o.
func (v Version) Compare(o Version) int {
	return cmp.Or(cmp.Compare(v.Counter, o.Counter), cmp.Compare(v.Writer, o.Writer))
}

// Documents are some documents, or (Full) a part of all that there are.
type Documents struct {
	Full        bool
	First, Last bool // of the parts
	All         []Document
	// Have is, for each writer, the last version that the sender has seen, and with it all
	// earlier ones; told with the last part. Ask: what the receiver has beyond that is to be
	// sent. Answer: these parts are all that the receiver did not have of it.
	Have        []Version
	Ask, Answer bool
	// Floor is the highest counter of what was deleted and forgotten. A document that is
	// older and not known any more was deleted.
	Floor uint64
}

const (
	// maxDocuments bounds the documents, maxDeleted those of them that say only that
	// something was deleted; the oldest of these are forgotten.
	maxDocuments = 1 << 16
	maxDeleted   = 4096
	// deletedKept is how long it is remembered that something was deleted.
	deletedKept = 10 * time.Minute
	// maxWriters bounds the writers of which the last version is known. There is one more
	// with each start of a member.
	maxWriters = 1024
	// firstCounter is the lowest of what is new: below are the versions of what was read
	// from files.
	firstCounter = 1 << 20
	// maxDocumentSize bounds one document, in bytes, maxDocumentsPart those of one message.
	maxDocumentSize  = 64 << 10
	maxDocumentsPart = 256 << 10
)

// documents keeps the documents of all members. A report has hello; both sides hand each
// ItemDocuments, and that of a report, to receive, which sends what the other side lacks.
// What changes later is sent by itself. The keeper tells who is a member (members).
//
// A writer's versions grow and each hop keeps
// their order, so that the last one which was seen of a writer stands for all before it: two
// members find what the other lacks by their lists of these (seen). A document that one of
// them has and the other has not, though it has seen its version, was deleted there.
type documents struct {
	m *Machine

	byName map[docName]*document
	recent list.List[*document] // by when they changed here
	change uint64               // counts that

	seen     map[Incarnation]uint64 // by writer
	highest  uint64                 // counter
	restored uint64                 // counter of what was read from a file last
	deleted  int
	// dropped is the last version of each writer that was deleted and forgotten. Who has not
	// seen it needs all documents.
	dropped map[Incarnation]uint64
	floor   uint64 // see Documents

	own      map[docName][]byte // bodies of what sources of this process declare
	disputed []docName          // of own, what others have changed
	inherit  admission.Instant  // until when what an earlier incarnation declared stays
	sessions map[Incarnation]*docSession
	orphans  map[string]admission.Instant // members that are gone, by name: when what they declared goes
	refused  int
	most     int // maxDeleted
}

type docName struct{ key, source, origin string }

type document struct {
	Document
	changed uint64
	at      admission.Instant // when that was
	node    list.Node[*document]
}

// docSession is what one peer was sent.
type docSession struct {
	sent     uint64               // changes up to here
	ready    bool                 // it has told what it has
	answered bool                 // what it has beyond that was told here
	behind   bool                 // something was deleted and forgotten before it was told: it needs all
	full     map[docName]struct{} // of the full list that it is sending
	lacked   bool                 // that list is of use: it was told from its first part on
}

func (d *Document) name() docName { return docName{d.Key, d.Source, d.Origin} }

func (d *documents) start(m *Machine) {
	*d = documents{
		m: m, byName: map[docName]*document{}, seen: map[Incarnation]uint64{}, dropped: map[Incarnation]uint64{},
		own: map[docName][]byte{}, sessions: map[Incarnation]*docSession{}, orphans: map[string]admission.Instant{},
		inherit: m.now.Add(max(m.o.Lost, orphanTime)), most: maxDeleted,
	}
}

// declare takes what this process changed, and tells the versions that it has now.
func (d *documents) declare(all []Document) {
	for i := range all {
		x := all[i]
		if len(x.Body) > maxDocumentSize || x.Key == "" {
			d.refused++
			continue
		}
		if x.Source != "" {
			x.Origin = d.m.o.Self.Name
			if x.Deleted {
				delete(d.own, x.name())
			} else {
				d.own[x.name()] = x.Body
			}
		}
		old := d.byName[x.name()]
		if old == nil && x.Deleted && x.Source != "" {
			continue
		}
		if old != nil && old.Deleted == x.Deleted && (x.Deleted || string(old.Body) == string(x.Body)) {
			all[i].Version = old.Version
			continue
		}
		d.write(x)
		if k := d.byName[x.name()]; k != nil {
			all[i].Version = k.Version
		}
	}
	d.flush()
}

// write gives x a new version and keeps it.
func (d *documents) write(x Document) {
	v := Version{max(d.highest+1, x.Version.Counter, firstCounter), d.m.o.Self.Incarnation}
	if x.Restored && d.restored+1 < firstCounter {
		d.restored++
		v = Version{d.restored, restorer(v.Writer)}
	}
	x.Version, x.Restored = v, false
	if old := d.byName[x.name()]; old != nil && old.Version.Compare(x.Version) >= 0 {
		d.tell(old) // what is known already counts
		return
	}
	d.keep(x)
}

// restorer is the writer of what a member read from files. Its versions are low, so they
// cannot be among those of the member, which grow.
func restorer(x Incarnation) Incarnation { return ^x }

// keep puts x in force.
func (d *documents) keep(x Document) *document {
	k := d.byName[x.name()]
	if k == nil {
		if len(d.byName) >= maxDocuments {
			d.refused++
			return nil
		}
		k = &document{}
		k.node.Value = k
		d.byName[x.name()] = k
	} else if k.Deleted {
		d.deleted--
	}
	if x.Deleted {
		x.Body = nil
		d.deleted++
	}
	k.Document = x
	d.change++
	k.changed, k.at = d.change, d.m.now
	if k.node.Listed() {
		d.recent.Remove(&k.node)
	}
	d.recent.PushBack(&k.node)
	d.note(x.Version)
	if d.deleted > d.most {
		d.forgetDeleted()
	}
	return k
}

// note remembers that a version was seen.
func (d *documents) note(v Version) {
	d.highest = max(d.highest, v.Counter)
	if v.Counter > d.seen[v.Writer] {
		d.seen[v.Writer] = v.Counter
	}
	if len(d.seen) > maxWriters {
		oldest := Version{^uint64(0), 0}
		for w, c := range d.seen {
			if v := (Version{c, w}); w != d.m.o.Self.Incarnation && v.Compare(oldest) < 0 {
				oldest = v
			}
		}
		delete(d.seen, oldest.Writer)
	}
}

// forgetDeleted forgets the older half of the documents that only say that something was
// deleted, but for those that not all members need have been told.
func (d *documents) forgetDeleted() {
	for n := d.recent.First(); n != nil && d.deleted > d.most/2; {
		next, k := n.Next(), n.Value
		if k.at.Add(deletedKept) > d.m.now && d.deleted <= 4*maxDeleted {
			break // those after it are younger
		}
		if k.Deleted {
			d.recent.Remove(n)
			delete(d.byName, k.name())
			d.deleted--
			for _, s := range d.sessions {
				s.behind = s.behind || s.ready && s.sent < k.changed
			}
			d.drop(k.Version)
			d.floor = max(d.floor, k.Version.Counter)
		}
		n = next
	}
}

// drop notes that what was deleted with a version is forgotten.
func (d *documents) drop(v Version) {
	d.dropped[v.Writer] = max(d.dropped[v.Writer], v.Counter)
	if len(d.dropped) > maxWriters {
		d.dropped = map[Incarnation]uint64{0: d.highest} // a writer that nobody has seen: all are told all
	}
}

// tell hands what counts to this process's fleet.
func (d *documents) tell(k *document) {
	d.m.out.Documents = append(d.m.out.Documents, k.Document)
}

// all are the documents that say something, for operators and tests.
func (d *documents) all() (list []Document) {
	for _, k := range d.byName {
		if !k.Deleted {
			list = append(list, k.Document)
		}
	}
	slices.SortFunc(list, func(a, b Document) int {
		return cmp.Or(cmp.Compare(a.Key, b.Key), cmp.Compare(a.Source, b.Source), cmp.Compare(a.Origin, b.Origin))
	})
	return list
}

// claim writes anew what others have changed of what this process's sources declare: they
// took it for gone.
func (d *documents) claim() {
	for _, name := range d.disputed {
		body, mine := d.own[name]
		if k := d.byName[name]; mine && (k == nil || k.Deleted || string(k.Body) != string(body)) {
			d.write(Document{Key: name.key, Source: name.source, Origin: name.origin, Body: body})
		}
	}
	d.disputed = d.disputed[:0]
}

// tick takes back what members declared that are gone for long.
func (d *documents) tick() {
	if d.inherit <= d.m.now {
		d.inherit = never
		for _, x := range d.all() {
			if _, mine := d.own[x.name()]; x.Source != "" && x.Origin == d.m.o.Self.Name && !mine {
				d.delete(x)
			}
		}
	}
	if len(d.orphans) > 0 && d.m.keeper != nil {
		for _, name := range slices.Sorted(maps.Keys(d.orphans)) {
			if d.orphans[name] <= d.m.now {
				delete(d.orphans, name)
				d.deleteOf(name)
			}
		}
	}
	d.flush()
}

func (d *documents) next() admission.Instant {
	next := d.inherit
	if d.m.keeper != nil {
		for _, at := range d.orphans {
			next = min(next, at)
		}
	}
	return next
}

// deleteOf takes back what the sources of a member declared.
func (d *documents) deleteOf(name string) {
	for _, x := range d.all() {
		if x.Source != "" && x.Origin == name {
			d.delete(x)
		}
	}
}

// delete takes back a document of somebody else.
func (d *documents) delete(x Document) {
	x.Deleted, x.Version = true, Version{}
	d.write(x)
	if k := d.byName[x.name()]; k != nil {
		d.tell(k)
	}
}

// members tells the keeper's documents who is a member, by name. What the sources of
// others have declared goes after a while, in which a member may come again.
func (d *documents) members(names []string) {
	for _, k := range d.byName {
		if k.Source == "" || k.Deleted {
			continue
		}
		if slices.Contains(names, k.Origin) {
			delete(d.orphans, k.Origin)
		} else if _, ok := d.orphans[k.Origin]; !ok {
			d.orphans[k.Origin] = d.m.now.Add(max(d.m.o.Lost, orphanTime))
		}
	}
}

// orphanTime is at least how long what a member has declared outlives it.
const orphanTime = 30 * time.Second
