package fleet

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
)

// pairGroup is equal for ranks that can hand KV cache to each other: those of one
// dialect, connector and form of the cache, with one value of the pair label.
func (w *Worker) pairGroup() string {
	group := w.Backend() + w.Dialect().PairForm(w.Connector(), &w.Facts().Facts)
	if value := w.pairLabel(); value != "" {
		group += " with " + string(w.fleet.cfg.Fleet.PairLabel) + "=" + value
	}
	return group
}

// pairLabel returns the worker's value of the label fleet.pair_label, "" without one.
func (w *Worker) pairLabel() string {
	key := w.fleet.cfg.Fleet.PairLabel
	if key == "" {
		return ""
	}
	return w.spec.Load().Labels[string(key)]
}

// inheritsConnector reports whether w takes the connector of its prefill workers.
func (w *Worker) inheritsConnector() bool {
	return w.role == admission.RoleDecode && w.Dialect().Connectors() != nil && w.ownConnector() == ""
}

// connectorsByModel are the connectors of prefill workers of a dialect by model and
// value of the pair label, in the order of registration.
type connectorsByModel map[dialectModel][]string

type dialectModel struct{ dialect, model, pairLabel string }

func (f *Fleet) prefillConnectorsLocked() connectorsByModel {
	o := connectorsByModel{}
	for _, w := range f.workers {
		if w.role != admission.RolePrefill || w.draining || w.Dialect().Connectors() == nil {
			continue
		}
		c := w.Connector()
		for _, m := range w.pools() {
			key := dialectModel{w.Backend(), m, w.pairLabel()}
			if !slices.Contains(o[key], c) {
				o[key] = append(o[key], c)
			}
		}
	}
	return o
}

// pools are the models that w is in, [""] for the pool of unknown ones.
func (w *Worker) pools() []string {
	switch own := w.ownNames(); {
	case len(own) > 0:
		return own
	case len(w.models) > 0:
		return w.models
	}
	return []string{""}
}

// pick returns the connector that a decode worker of the dialect, the models and the
// pair label is to have. One that it has stays as long as it is offered.
func (o connectorsByModel) pick(d engine.Dialect, models []string, pairLabel, now string) string {
	of := d.Connectors()
	best := of.Unknown
	for _, m := range models {
		for _, c := range o[dialectModel{d.Name(), m, pairLabel}] {
			if c == now && of.Preference(c) >= 2 {
				return c
			}
			if of.Preference(c) > of.Preference(best) {
				best = c
			}
		}
	}
	return best
}

// inheritConnectorLocked gives w the connector of its prefill workers and reports whether that
// changed it.
func (w *Worker) inheritConnectorLocked(o connectorsByModel) bool {
	c := o.pick(w.Dialect(), w.pools(), w.pairLabel(), w.inheritedConnector)
	if c == w.inheritedConnector {
		return false
	}
	w.inheritedConnector = c
	w.updateState(w.Facts())
	return true
}

// pairingNews are new notes about a worker.
type pairingNews struct {
	w     *Worker
	notes []string
}

func (f *Fleet) logPairing(news []pairingNews) {
	for _, n := range news {
		for _, note := range n.notes {
			f.log.Warn("worker cannot be paired", "worker", n.w.url, "id", n.w.id, "type", n.w.role.String(), "about", note)
		}
	}
}

// pairingLocked works out for each worker what keeps it from being paired, and
// returns the new notes. Workers that were never healthy do not count: nothing is
// known of them.
func (f *Fleet) pairingLocked() (news []pairingNews) {
	groups := [2]map[string]map[string]bool{{}, {}} // by side, model: the groups
	mixed, one := false, ""
	side := func(w *Worker) int {
		switch {
		case w.draining || !w.health.everHealthy || !w.Facts().read:
			return -1
		case w.role == admission.RolePrefill:
			return 0
		case w.role == admission.RoleDecode:
			return 1
		}
		return -1
	}
	for _, w := range f.workers {
		s := side(w)
		if s < 0 {
			continue
		}
		g := w.pairGroup()
		mixed = mixed || one != "" && one != g
		one = g
		for _, m := range w.pools() {
			if groups[s][m] == nil {
				groups[s][m] = map[string]bool{}
			}
			groups[s][m][g] = true
		}
	}
	for _, w := range f.workers {
		var notes []string
		if s := side(w); mixed && s >= 0 {
			notes = w.findPairingNotes(groups[1-s])
		}
		if !slices.Equal(notes, w.pairingNotes) {
			w.pairingNotes = notes
			if len(notes) > 0 {
				news = append(news, pairingNews{w, notes})
			}
		}
	}
	return news
}

func (w *Worker) findPairingNotes(others map[string]map[string]bool) (notes []string) {
	own := w.pairGroup()
	theirs := map[string]bool{}
	for _, m := range w.pools() {
		maps.Copy(theirs, others[m])
	}
	other := "decode"
	if w.role == admission.RoleDecode {
		other = "prefill"
	}
	list := strings.Join(slices.Sorted(maps.Keys(theirs)), ", ")
	switch {
	case len(theirs) > 0 && !theirs[own]:
		notes = append(notes, fmt.Sprintf("no %s worker of its model can be paired with it: it uses %s, they use %s; %s", other, own, list, w.pairingAdvice(theirs)))
	case w.inheritsConnector() && len(theirs) > 1:
		notes = append(notes, fmt.Sprintf("prefill workers of its model use %s; it is assumed to use %s: set its kv_connector", list, own))
	}
	return notes
}

// pairingAdvice says what must become the same so that w can be paired with a worker of one
// of the other side's groups.
func (w *Worker) pairingAdvice(theirs map[string]bool) string {
	const engines = "set the same backend and kv_connector for both"
	key := string(w.fleet.cfg.Fleet.PairLabel)
	if key == "" {
		return engines
	}
	label := "workers are paired only with the same label " + key
	form, _, _ := strings.Cut(w.pairGroup(), " with "+key+"=")
	for group := range theirs {
		if other, _, _ := strings.Cut(group, " with "+key+"="); other == form {
			return label
		}
	}
	return engines + ", and " + label
}

// withheldLocked reports whether w is healthy but gets no requests, because what a
// pair needs to know of it could not be read yet. After several failures it is false.
func (w *Worker) withheldLocked() bool {
	if w.role == admission.RoleRegular || w.factsAttempts >= w.fleet.cfg.Health.FailureThreshold {
		return false
	}
	return w.factsInsufficient()
}

// factsInsufficient reports whether its facts lack what a pair needs to know.
func (w *Worker) factsInsufficient() bool {
	f := w.Facts()
	if !f.read {
		return true
	}
	if w.setBackend() == "" && f.Backend == "" && f.Incomplete {
		return true
	}
	return w.role == admission.RolePrefill && !w.Dialect().PairReady(w.pairKnowledge())
}

// pairKnowledge is what is known of w for its dialect.
func (w *Worker) pairKnowledge() engine.PairKnowledge {
	k := engine.PairKnowledge{
		Facts: &w.Facts().Facts, Prefill: w.role == admission.RolePrefill,
		SetConnector: w.setConnector(), Connector: w.ownConnector(),
		BootstrapSet: w.spec.Load().BootstrapPort != config.BootstrapAuto, Ranks: len(w.Ranks()),
	}
	if p := w.peer.Load(); p != nil {
		k.Peer = *p
	}
	return k
}
