package dispatch

import (
	"context"
	"log/slog"
	"net/http"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Dispatcher runs requests. It is safe for concurrent use.
type Dispatcher struct{ services }

// New makes a dispatcher.
func New(gate *admission.Gate, clock admission.Clock, f *fleet.Fleet, o Options, m *Metrics, log *slog.Logger) *Dispatcher {
	o.complete()
	cfg := o.Config
	d := &Dispatcher{services{
		opts: o, cfg: cfg, gate: gate, clock: clock, fleet: f, log: log, metrics: m,
		classes:           classify.Options{MinQueue: cfg.Admission.ClientQueueMin, MaxQueue: cfg.Admission.ClientQueueMax},
		legLimits:         upstream.Limits{Header: cfg.Timeouts.ResponseHeader, FirstByte: cfg.Timeouts.FirstByte, StreamIdle: cfg.Timeouts.StreamIdle},
		passAuthorization: len(cfg.Auth.APIKeys) == 0 && cfg.Auth.WorkerAPIKey == "",
		passDPRank:        cfg.Server.TrustUpstream && !cfg.Fleet.PDDisaggregation && !cfg.Fleet.DPAware,
		rooms:             engine.NewRooms(), budget: newRetryBudget(),
		estimator: tokens.NewEstimator(0, m.tokenMetrics), outputs: tokens.NewOutputLearner(0), routes: newRouteMemory(clock),
		limits: deadlines{cause: errRequestTimeout}, graces: deadlines{cause: errDecodeOver},
	}}
	if d.opts.Texts == nil {
		d.opts.Texts = d.textOf
	}
	d.caches, d.prefixBytes = newCaches(&o, f), prefixBytes(cfg)
	return d
}

// Wait returns when no prefill leg outlives its handler any more, or with ctx's
// error. No handler may be running.
func (d *Dispatcher) Wait(ctx context.Context) error {
	done := make(chan struct{})
	go func() { d.running.Wait(); close(done) }()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TokensPerByte is how many tokens of a model a byte of a prompt is, as far as engines'
// answers have taught. It takes no lock.
func (d *Dispatcher) TokensPerByte(pool string) float64 { return d.estimator.TokensPerByte(pool) }

// Serve runs one request and writes the answer to w, whatever becomes of it. It
// panics with http.ErrAbortHandler when an answer that has begun cannot be
// finished, so that the client sees that it is broken; call.Record is whole then
// too.
func (d *Dispatcher) Serve(w http.ResponseWriter, r *http.Request, call *Call) {
	x := &exchange{request: request{d: &d.services, call: call, w: w, plan: plan{pair: d.cfg.Fleet.PDDisaggregation && !call.Passing}}}
	x.attempt.request, x.verdicts.x = &x.request, &x.request
	x.refs.Store(1)
	x.bodyRefs.Store(1)
	d.metrics.begin(call.Route)
	defer d.metrics.end(call.Route)
	defer x.leave()
	x.ctx.begin(r.Context())
	if t := d.cfg.Timeouts.Request; t > 0 {
		x.ctx.endBy(&d.limits, call.Arrived.Add(t))
	}
	x.run()
	if x.abort {
		panic(http.ErrAbortHandler)
	}
}
