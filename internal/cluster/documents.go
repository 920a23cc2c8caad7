package cluster

// Document describes a worker that a member registered by hand, or that a source of its
// declares. Of two with one key the higher version counts.
type Document struct {
	Key     string // the worker's URL
	Version Version
	Deleted bool
	Source  string // of discovery, with Origin; "": by hand
	Origin  string // the name of the member whose source declares it
	Body    []byte // the fleet's, JSON
}

// Version orders what members said of one key.
type Version struct {
	Counter uint64
	Writer  Incarnation
}

// Documents are some documents, or all that a member has.
type Documents struct {
	Full bool
	All  []Document
}

// documents keeps the documents of all members.
type documents struct{ m *Machine }

func (d *documents) start(m *Machine) { d.m = m }

// declare takes what this process changed.
func (d *documents) declare([]Document) {}
