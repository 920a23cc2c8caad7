// Package discovery brings the workers that are declared elsewhere (a file, names in DNS,
// Kubernetes) into the fleet, and keeps them in line while they change.
//
// # Goal
//
// A source says what it sees, again and again; what of it is put in force, and when, is
// decided in one place for all sources. A source that fails, or that suddenly sees nothing,
// does not take the fleet down.
//
// # Non-goals
//
// Whether a declared worker is alive and what it serves is the fleet's business. Sources do
// not know each other.
//
// # Life of a reading
//
// A Source runs on a goroutine of its own and reports Readings to the Manager. One that
// failed changes nothing. One that drops suspiciously many workers is held back: what it
// adds and changes is put in force at once, what it drops stays until the drop was read
// several times or some time has passed (Manager says the rule). The rest goes to
// fleet.Reconcile, which owns the question whose worker a worker is.
//
// # Locks
//
// Lock order: the lock of a source's state, then its lock for status, or the fleet's. The
// first is held while a reading is put in force, so that readings of one source come one
// after the other; nothing waits for the network meanwhile.
package discovery

import (
	"context"

	"github.com/sluice-router/sluice/internal/fleet"
)

// Source is one place where workers are declared. Each implementation is a package of its
// own below this one.
type Source interface {
	// Name is the source's name in log, metrics and /workers: "file", "dns", "kubernetes".
	Name() string
	// Run reports a reading at once and after each change, until ctx ends; then it returns
	// when nothing of it runs any more. report may block; it must not be called after Run
	// has returned. Run retries what fails, with pauses that grow, and reports each failure.
	Run(ctx context.Context, report func(Reading))
}

// Reading is the outcome of one look at a source.
type Reading struct {
	// Workers are all that the source declares, whole: what it does not name any more is
	// to go. Two with one URL are refused by who takes the reading, with a warning. The
	// slice must not be changed any more; the same one again costs little.
	Workers []fleet.Declared
	// LeftOut are the URLs of workers that the source declares in a way that cannot be
	// used. One that is in force stays as it is: that its entry is wrong now is no order
	// to remove it.
	LeftOut []string
	// Warnings are about what was left out of Workers, each with its place, such as "pod
	// default/x: annotation …". At most MaxWarnings; the last one then counts the others.
	Warnings []string
	// Err is why the source could not be read. Workers says nothing then, and the last
	// good set stays in force.
	Err error
}

// MaxWarnings bounds the warnings of one reading.
const MaxWarnings = 20
