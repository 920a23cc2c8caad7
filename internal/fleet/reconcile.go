package fleet

import (
	"context"
	"errors"
	"fmt"
)

// SourceRequests is the source of workers that were registered by request.
const SourceRequests = "requests"

// Reconcile makes the workers of one source those of specs: new ones are added,
// changed ones replaced in place, and those that the source had brought before and
// does not name any more are removed as by Remove. A source owns what it brought and
// nothing else: a worker that another source brought, or an operator registered, stays
// as it is.
//
// Specs that cannot be registered are left out, and so are those of workers that have
// another owner; the others are put in force, and the error joins one for each that was
// left out. It says the URL and not the place in specs.
func (f *Fleet) Reconcile(ctx context.Context, source string, specs []WorkerSpec) error {
	var errs []error
	keep := make(map[string]bool, len(specs))
	for _, spec := range specs {
		w, _, err := f.add(ctx, source, spec)
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
