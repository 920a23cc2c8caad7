package fleet

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sluice-router/sluice/internal/config"
)

// SourceRequests is the source of workers that were registered by request.
const SourceRequests = "requests"

// Declared is one worker as a source declares it: its settings, and what the source
// knows of its life. The zero values of the latter say that it may get requests.
type Declared struct {
	config.Worker

	// Identity tells apart engines that follow each other at one address, such as a
	// pod's UID. Another one than before means another engine: nothing that was known of
	// the former is kept. Empty when the source cannot tell.
	Identity string
	// NotReady is why the worker must not be chosen for now, for the operator. It stays
	// registered with all that is known of it.
	NotReady string
	// Leaving: the worker gets no new requests and is removed when those it has are over,
	// at LeaveBy at the latest, or within the usual drain timeout where that is zero.
	Leaving bool
	LeaveBy time.Time
	// Origin is how an operator finds it at the source: "pod default/prefill-0", or a file
	// and a line.
	Origin string
}

// Declare returns workers as a source declares them that knows only their settings.
func Declare(workers []config.Worker) []Declared {
	declared := make([]Declared, len(workers))
	for i, w := range workers {
		declared[i].Worker = w
	}
	return declared
}

// Reconcile makes the workers of one source those of specs: new ones are added,
// changed ones replaced in place, and those that the source had brought before and
// does not name any more are removed as by Remove. A source owns what it brought and
// nothing else: a worker that another source brought, or an operator registered, stays
// as it is.
//
// Specs that cannot be registered are left out, and so are those of workers that have
// another owner; the others are put in force, and the error joins one for each that was
// left out. It says the URL and not the place in specs.
func (f *Fleet) Reconcile(ctx context.Context, source string, specs []Declared) error {
	var errs []error
	keep := make(map[string]bool, len(specs))
	for _, spec := range specs {
		w, _, err := f.add(ctx, source, spec.Worker)
		switch {
		case err == nil:
			keep[w.spec.URL] = true
		case errors.Is(err, ErrClosed) || ctx.Err() != nil:
			return err
		default:
			errs = append(errs, fmt.Errorf("worker %s: %w", spec.URL, err))
			// A spec that is refused now is no order to remove what it brought before.
			if old, ok := f.Get(spec.URL); ok {
				keep[old.spec.URL] = true
			}
		}
	}
	for _, id := range f.ownedBut(source, keep) {
		f.Remove(id)
	}
	return errors.Join(errs...)
}

// ownedBut returns the ids of the workers of a source whose URLs are not in keep.
func (f *Fleet) ownedBut(source string, keep map[string]bool) []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []string
	for _, w := range f.workers {
		if w.source == source && !w.draining && !keep[w.spec.URL] {
			ids = append(ids, w.id)
		}
	}
	return ids
}

// otherOwnerError is returned for a worker that another source brought.
type otherOwnerError struct{ url, owner string }

func (e *otherOwnerError) Error() string {
	return fmt.Sprintf("%s is already registered by %s, which keeps it", e.url, e.owner)
}
