package dispatch

import (
	"net/http"
	"syscall"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/upstream"
)

// A router that is out of files said that the engine had failed, with 502 and
// without a word on when to come again.
func TestOutOfFilesIsNoEnginesFault(t *testing.T) {
	x := &exchange{request: request{plan: plan{pair: true}, d: &services{}}}
	f := x.legFailure(&legContext{}, admission.DecodeLeg, nil, &upstream.Error{Kind: upstream.KindLocal, Op: upstream.OpDial, Err: syscall.EMFILE})
	if f.local.Status != http.StatusServiceUnavailable || f.local.Code != "too_many_connections" || f.local.RetryAfter <= 0 {
		t.Errorf("%+v", f.local)
	}
	if blames[f.blame()].charge != chargeNone {
		t.Error("somebody is charged")
	}
	if again, _ := x.retryable(f); again {
		t.Error("it is tried again at once")
	}
}
