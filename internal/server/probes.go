package server

import (
	"net/http"
	"strings"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/openai"
)

// alive answers liveness probes: this process handles requests.
func (q *request) alive() {
	q.reason = reasonOK
	q.out.Header()[headerContentType] = []string{contentTypeText}
	q.out.Header()[headerContentLength] = []string{"2"}
	q.out.WriteHeader(http.StatusOK)
	_, _ = q.out.Write([]byte("OK")) // fails only if the probe disconnected
}

// ready answers readiness probes: whether a request could be served now.
func (q *request) ready() {
	why, missing := q.s.notReady()
	if why == "" {
		q.reason = reasonOK
		q.json(http.StatusOK, []byte(`{"status":"ready"}`))
		return
	}
	q.reason = reasonNotReady
	b := append([]byte(`{"status":"not_ready","reason":`), openai.AppendString(nil, why)...)
	b = append(b, `,"missing":[`...)
	for i, m := range missing {
		if i > 0 {
			b = append(b, ',')
		}
		b = openai.AppendString(b, m)
	}
	q.json(http.StatusServiceUnavailable, append(b, ']', '}'))
}

// notReady returns why no request could be served now, "" if one could, and the roles
// without a usable worker, or "pair".
func (s *Server) notReady() (why string, missing []string) {
	if s.phase.Load() != phaseServing {
		return "draining", nil
	}
	roles := []admission.Role{admission.RoleRegular}
	if s.cfg.Fleet.PDDisaggregation {
		roles = []admission.Role{admission.RolePrefill, admission.RoleDecode}
	}
	for _, r := range roles {
		if s.opts.Gate.Candidates(r) == 0 {
			missing = append(missing, r.String())
		}
	}
	switch {
	case len(missing) > 0:
	case s.cfg.Fleet.PDDisaggregation && !s.opts.Gate.Servable(admission.Disaggregated):
		return "no prefill worker can be paired with a decode worker of its model", []string{"pair"}
	default:
		return "", nil
	}
	return "no " + strings.Join(missing, " and no ") + " worker can take a request now", missing
}
