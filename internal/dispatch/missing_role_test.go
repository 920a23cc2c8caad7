package dispatch

import (
	"strings"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/sim"
)

// Who is told that no worker is ready is told which role is missing, where only one is.
func TestMissingRoleIsNamed(t *testing.T) {
	t.Parallel()
	for want, roles := range map[string][]admission.Role{
		"no prefill worker for":               {admission.RolePrefill},
		"no decode worker for":                {admission.RoleDecode},
		"no prefill and no decode worker for": {admission.RolePrefill, admission.RoleDecode},
	} {
		r := newRig(t, pd(rigOptions{health: quickDeath, sim: sim.Options{Prefill: 1, Decode: 1}}))
		for _, role := range roles {
			w := r.sim.Prefill(0)
			if role == admission.RoleDecode {
				w = r.sim.Decode(0)
			}
			w.Kill()
			r.until("the worker is found dead", func() bool { return r.gate.Candidates(role) == 0 })
		}
		if a := r.chat(""); a.status != 503 || a.code() != "no_available_workers" || !strings.Contains(a.body, want) {
			t.Errorf("want %q, got %d %s", want, a.status, a.body)
		}
		if rec := r.waitRecord(0); !strings.Contains(rec.Err.Error(), want) {
			t.Errorf("want %q in the log, got %s", want, rec.Err)
		}
	}
}
