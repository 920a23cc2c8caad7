package upstream

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// A limit that passes in the moment in which the exchange ends otherwise was a crash of the
// process: the timer's goroutine ended what was no longer there.
func TestNetHTTPLimitPassesAsTheExchangeEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 2000 {
			ctx, cancel := context.WithCancelCause(t.Context())
			b := &netHTTPBody{ep: &Endpoint{}, ctx: t.Context(), cancel: cancel, limits: Limits{Total: time.Second}, start: time.Now()}
			b.arm(OpHeader)
			time.Sleep(time.Second)
			b.release()
			synctest.Wait()
			if ctx.Err() == nil {
				t.Fatal("the exchange goes on")
			}
		}
	})
}
