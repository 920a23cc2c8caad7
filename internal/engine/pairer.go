package engine

import (
	"context"
	"slices"
	"strings"
)

// Pairer is what makes two workers of a dialect pairable: how they hand KV cache over,
// how that is found out, and what must be known of them.
type Pairer interface {
	// Connectors are the ways in which workers of the dialect may hand KV cache over;
	// nil if there is only one.
	Connectors() *Connectors
	// FindConnector finds out the connector of a prefill worker that does not report
	// it. It is called for dialects with Connectors. An error may be transient.
	FindConnector(ctx context.Context, w Probed, f *Facts) (Found, error)
	// ReadPeer asks for what the decode leg must be told of a prefill worker with the
	// connector. asked is false where it needs no question. The error is for the
	// operator, and says what did not answer.
	ReadPeer(ctx context.Context, w Probed, connector string) (p Peer, asked bool, err error)

	// PairForm distinguishes workers of the dialect that cannot be paired: only those
	// of the same form can.
	PairForm(connector string, f *Facts) string
	// PairReady tells whether enough is known of a prefill worker to pair it.
	PairReady(k PairKnowledge) bool
	// UsesBootstrap tells whether the legs meet at the prefill worker's bootstrap
	// port.
	UsesBootstrap(connector string) bool
	// Warnings are what an operator should know of a worker beside what is common to
	// all dialects.
	Warnings(k PairKnowledge) []string
}

// Peer is what decode must be told of a prefill worker, and the plan of a pair finds
// in Rank.Peer: a type of the dialect's own. Immutable.
type Peer any

// Connectors are the KV connectors of a dialect.
type Connectors struct {
	// Of is the engine's name, for messages.
	Of string
	// Names are those that an operator may set.
	Names []string
	// Spellings maps every spelling of a connector, in lower case, to its name.
	Spellings map[string]string
	// Unknown is the connector of workers of which none is known.
	Unknown string
	// Preference orders the connectors of prefill workers by how gladly a decode
	// worker takes one over: one of preference 2 or more stays as long as it is
	// offered.
	Preference func(name string) int
}

// Named returns the connector of some spelling; empty for none. c may be nil.
func (c *Connectors) Named(spelling string) string {
	if c == nil {
		return ""
	}
	return c.Spellings[strings.ToLower(spelling)]
}

// Probed is the worker that is asked.
type Probed struct {
	Ask Ask
	// Host is that of its URL, without a port.
	Host string
	// BootstrapAddr is the base URL of its bootstrap server; empty: it is set to none.
	BootstrapAddr string
	// Model is the name that the operator registered it with; empty for none.
	Model string
}

// Found is what the question for a connector has found out.
type Found struct {
	Connector string
	// Note is for the operator.
	Note string
	// Peer is what the answer told for the decode leg; nil for nothing.
	Peer Peer
}

// PairKnowledge is what is known of a worker that may be paired.
type PairKnowledge struct {
	Facts *Facts
	// Prefill: it is a prefill worker.
	Prefill bool
	// SetConnector is the connector that the operator set, Connector that or what was
	// found out; empty for none.
	SetConnector, Connector string
	Peer                    Peer
	// BootstrapSet: the operator set its bootstrap port, or that it has none.
	BootstrapSet bool
	// Ranks is how many ranks it is scheduled as.
	Ranks int
}

// Connector returns the connector of some spelling in any dialect, and those of the
// dialect that it belongs to.
func (r *Registry) Connector(spelling string) (name string, of *Connectors) {
	for _, d := range r.dialects {
		if c := d.Connectors(); c.Named(spelling) != "" {
			return c.Named(spelling), c
		}
	}
	return "", nil
}

// ConnectorNames are the names of the connectors of all dialects.
func (r *Registry) ConnectorNames() (names []string) {
	for _, d := range r.dialects {
		if c := d.Connectors(); c != nil {
			for _, name := range c.Names {
				if !slices.Contains(names, name) {
					names = append(names, name)
				}
			}
		}
	}
	return names
}

// The part of a Pairer of engines that need to be told nothing of each other but what
// the plan says.

// Connectors implements Pairer.
func (HTTP) Connectors() *Connectors { return nil }

// FindConnector implements Pairer.
func (HTTP) FindConnector(context.Context, Probed, *Facts) (Found, error) { return Found{}, nil }

// ReadPeer implements Pairer.
func (HTTP) ReadPeer(context.Context, Probed, string) (Peer, bool, error) { return nil, false, nil }

// PairForm implements Pairer.
func (HTTP) PairForm(string, *Facts) string { return "" }

// PairReady implements Pairer.
func (HTTP) PairReady(PairKnowledge) bool { return true }

// UsesBootstrap implements Pairer.
func (HTTP) UsesBootstrap(string) bool { return false }

// Warnings implements Pairer.
func (HTTP) Warnings(PairKnowledge) []string { return nil }
