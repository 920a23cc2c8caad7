package dispatch

import (
	"errors"
	"fmt"
	"runtime/debug"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

var errPanicked = errors.New("the router panicked")

// guarded runs a leg on a goroutine of its own. A panic in it fails this request as
// one in its handler does, not the process with every other client: it becomes the
// leg's failure, which charges no engine.
func (x *exchange) guarded(leg admission.Leg, run func() *failure) (f *failure) {
	defer func() {
		if p := recover(); p != nil {
			x.logPanic("the "+leg.String()+" leg", p)
			err := fmt.Errorf("%w: %v", errPanicked, p)
			f = &failure{leg: leg, reason: reasonInternal, err: err, local: openai.Internal(err)}
		}
	}()
	return run()
}

// logPanic must be called by the deferred function that recovered p.
func (x *exchange) logPanic(where string, p any) {
	x.d.log.Error("panic while handling a request", "request_id", x.call.ID, "in", where,
		"panic", fmt.Sprint(p), "stack", string(debug.Stack()))
}
