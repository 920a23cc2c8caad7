package dispatch

import (
	"slices"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// serving answers which ranks have the route of a request, and which of them serve it.
type serving struct{ *request }

func (x *request) serving() serving { return serving{x} }

// ungated is a pass-through request that takes no place at the gate: where prefill and
// decode are apart, and it is neither. Tokenizing, say, holds no KV cache and must not
// wait behind prompts. It goes to a decode worker, and to a prefill worker only where no
// decode worker can take it, because the time of those is what the gate is there to guard. Otherwise the rules are those of every
// request: pins, labels, adapters, the policy.
type ungated struct {
	spec admission.TargetSpec // what both roles are asked for, beside pins
	// pinned: only those ranks or workers may serve it that pins name, by role.
	pinned bool
	pins   map[admission.Role]string
	// chosen is the rank of the present attempt, tried those of the failed ones.
	chosen *admission.Rank
	tried  []*admission.Rank
}

// ungatedRoles are the roles in the order in which they are asked.
var ungatedRoles = [...]admission.Role{admission.RoleDecode, admission.RolePrefill}

// ungatedTries bounds how many workers are asked for one request, and so how many
// are found out not to have a route.
const ungatedTries = 16

// ranks returns the ranks that the request may run on by its model and its pins.
func (x serving) ranks() []fleet.Serving {
	return slices.DeleteFunc(x.d.fleet.Serving(x.plan.pool), func(s fleet.Serving) bool {
		role := s.Worker.Role()
		if x.plan.ungated == nil {
			return role != admission.RoleRegular
		}
		b := x.plan.ungated
		pin := b.pins[role]
		return !slices.Contains(ungatedRoles[:], role) || b.pinned && pin != s.Worker.URL() && pin != s.Rank.ID() ||
			slices.ContainsFunc(b.tried, func(r *admission.Rank) bool { return r.Data() == s.Rank })
	})
}

func (x serving) lacks(s *fleet.Serving) bool { return x.d.routes.lacks(s.Worker, x.pattern()) }

// picky tells whether some worker may be worse at the route than others.
func (x serving) picky() bool {
	return x.d.routes.any() || x.call.Passing && x.d.fleet.AnyRouteFailed()
}

// able are the workers of a role that may have the route. Those that keep failing at
// it are left out as long as there are others.
func (x serving) able(role admission.Role) (workers []string, all bool) {
	var failing []string
	lacking := false
	for _, s := range x.ranks() {
		switch {
		case s.Worker.Role() != role:
		case x.lacks(&s):
			lacking = true
		case x.call.Passing && s.Rank.RouteOpen(x.pattern()):
			failing = append(failing, s.Worker.URL())
		default:
			workers = append(workers, s.Worker.URL())
		}
	}
	if len(workers) == 0 {
		return failing, !lacking
	}
	return workers, !lacking && len(failing) == 0
}

// choose chooses a rank for a request beside the gate, in decode before those
// in prefill.
func (x serving) choose() (*admission.Rank, *failure) {
	b := x.plan.ungated
	for _, role := range ungatedRoles {
		pin := b.pins[role]
		if b.pinned && pin == "" {
			continue
		}
		spec := b.spec
		spec.Pins[admission.DecodeLeg] = pin
		if x.picky() {
			able, all := x.able(role)
			if len(able) == 0 {
				continue
			}
			if !all {
				spec.Allowed[admission.DecodeLeg] = able
			}
		}
		if r := x.d.gate.Pass(spec, role, &x.ticket.Hints[admission.DecodeLeg], b.tried...); r != nil {
			return r, nil
		}
	}
	for _, s := range x.ranks() {
		if !x.lacks(&s) {
			return nil, x.noWorkers()
		}
	}
	return nil, x.noRoute(nil)
}

// noteRoute learns from an engine's answer that it does not have the route. An
// engine that does not know the model says so in other words.
func (x serving) noteRoute(rank *fleet.Rank, f *failure) {
	if f == nil || f.status != statusNotFound || !routeMissing(f.body) {
		return
	}
	x.d.routes.note(rank.Worker(), x.pattern())
	*f = *x.noRoute(rank)
}

// routeElsewhere tells, after a worker turned out not to have the route, whether
// another one may. If only such that are down now may, f says that.
func (x serving) routeElsewhere(f *failure) bool {
	if x.attempts >= ungatedTries || x.plan.ungated == nil && x.pinned() != "" {
		return false
	}
	unsure := false
	for _, s := range x.ranks() {
		switch {
		case x.lacks(&s) || s.Rank == f.rank:
		case s.Ready:
			return true
		default:
			unsure = true
		}
	}
	if unsure {
		f.reason, f.local = reasonNoWorkers, x.noWorkers().local
	}
	return false
}

// noRoute is the failure of a request that no worker has the route of.
func (x serving) noRoute(rank *fleet.Rank) *failure {
	return &failure{leg: admission.DecodeLeg, rank: rank, noRoute: rank != nil, reason: reasonNoRoute, local: openai.RouteNotFound(x.pattern())}
}

// noWorkers is the answer while workers are expected that nobody has seen yet:
// the model may be theirs.
func (x serving) noWorkers() *failure {
	again := x.d.fleet.HealthInterval()
	if _, served := x.d.fleet.SolePool(); served == 0 {
		again = time.Second // at the start: workers tell their models as soon as they are up
	}
	return &failure{reason: reasonNoWorkers, local: openai.NoAvailableWorkers(x.call.Peeked.Model, "", again)}
}
