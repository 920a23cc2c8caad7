package kubernetes

import (
	"fmt"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/engine/dialects"
	"github.com/sluice-router/sluice/internal/labelselector"
)

// roles says which labels make which workers, in the order in which they are tried.
type roles []struct {
	selector labelselector.Selector
	worker   config.WorkerType
	option   string // for messages
}

func newRoles(k *config.Kubernetes, pd bool) (roles, error) {
	var rs roles
	add := func(text config.LabelSelector, worker config.WorkerType, option string) error {
		if text == "" {
			return nil
		}
		s, err := labelselector.Parse(string(text))
		if err != nil {
			return fmt.Errorf("%s: %q is no label selector: %w", option, text, err)
		}
		rs = append(rs, struct {
			selector labelselector.Selector
			worker   config.WorkerType
			option   string
		}{s, worker, option})
		return nil
	}
	if !pd {
		return rs, add(k.Selector, config.WorkerRegular, "--selector")
	}
	if err := add(k.PrefillSelector, config.WorkerPrefill, "--prefill-selector"); err != nil {
		return nil, err
	}
	return rs, add(k.DecodeSelector, config.WorkerDecode, "--decode-selector")
}

// of returns the role of an object with the labels. Where several selectors match, the
// first one's is it, and also says which the others are.
func (rs roles) of(labels map[string]string) (worker config.WorkerType, also string, ok bool) {
	for _, r := range rs {
		switch {
		case !r.selector.Matches(labels):
		case !ok:
			worker, ok = r.worker, true
		default:
			also = r.option
		}
	}
	return worker, also, ok
}

// serverSelector is what the API server is asked for: no object that has a role is
// missing from it.
func (rs roles) serverSelector() string {
	all := make([]labelselector.Selector, len(rs))
	for i, r := range rs {
		all[i] = r.selector
	}
	return labelselector.Union(all...)
}

// rules are what makes workers of objects. Immutable.
type rules struct {
	roles      roles
	port       config.PodPort
	scheme     string // of URLs
	modelFrom  config.PodMetadata
	model      string // of workers that say none
	bootstrap  string // annotation
	connector  string // annotation
	engineID   string // annotation
	pairLabel  string // "" for none
	connectors *engine.Registry
}

func newRules(cfg *config.Config) (*rules, error) {
	k := &cfg.Kubernetes
	rs, err := newRoles(k, cfg.Fleet.PDDisaggregation)
	if err != nil {
		return nil, err
	}
	return &rules{
		roles: rs, port: k.Port, scheme: k.Scheme, modelFrom: k.ModelIDFrom, model: cfg.Fleet.ModelID,
		bootstrap: string(k.BootstrapPortAnnotation), connector: string(k.KVConnectorAnnotation), engineID: string(k.KVEngineIDAnnotation),
		pairLabel: string(cfg.Fleet.PairLabel), connectors: dialects.All(),
	}, nil
}
