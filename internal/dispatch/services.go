package dispatch

import (
	"log/slog"
	"slices"
	"sync"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/classify"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/tokens"
	"github.com/sluice-router/sluice/internal/upstream"
)

// services are what all requests use.
type services struct {
	// immutable
	opts    Options
	cfg     *config.Config
	classes classify.Options
	// legLimits bound each leg; Total is not used.
	legLimits upstream.Limits
	// passAuthorization hands the client's key to engines: sluice asks for none
	// itself and has none for them.
	passAuthorization bool
	// passDPRank hands the data-parallel rank that the client names to engines: it is a
	// router that has paired them, and sluice schedules workers as a whole.
	passDPRank bool
	gate       *admission.Gate
	clock      admission.Clock
	fleet      *fleet.Fleet
	log        *slog.Logger
	metrics    *Metrics
	rooms      *engine.Rooms
	budget     *retryBudget
	// estimator counts prompts' tokens. It is the only one of its gate.
	estimator *tokens.Estimator
	// caches is what is known of engines' KV caches; nil where nothing depends on it.
	caches *caches
	// prefixBytes is the length of the beginning of a prompt that policies go by; zero: none
	// does.
	prefixBytes int
	// outputs learns how long answers are, for ReserveAuto.
	outputs *tokens.OutputLearner
	// routes are those that workers turned out not to have.
	routes *routeMemory

	// limits has the total times of requests, graces the times of prefill legs that
	// outlive their decode.
	limits, graces deadlines

	// running counts goroutines, for Wait. It is only added to while a handler
	// runs.
	running sync.WaitGroup
}

// maxRetries is the most attempts after the first.
func (d *services) maxRetries() int {
	if d.cfg.Retry.Disabled {
		return 0
	}
	return d.cfg.Retry.MaxRetries
}

// reservesAuto: what an answer has beyond its reservation is then booked as it grows,
// whatever track_output_blocks says.
func (d *services) reservesAuto() bool {
	return d.cfg.Admission.ReserveOutputTokens == config.ReserveAuto
}

// some tells whether some worker has such a dialect. Workers are asked only where
// there is such a dialect at all.
func (d *services) some(is func(engine.Dialect) bool) bool {
	return d.fleet.Dialects().Some(is) && slices.ContainsFunc(d.fleet.List(), func(w *fleet.Worker) bool { return is(w.Dialect()) })
}

// decodesAlone tells whether all decode workers of a model can run whole requests.
func (d *services) decodesAlone(model string) bool {
	some := false
	for _, w := range d.fleet.List() {
		if w.Role() != admission.RoleDecode || !w.Serves(model) {
			continue
		}
		if !w.Dialect().DecodesWhole() {
			return false
		}
		some = true
	}
	return some
}
