package policy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sluice-router/sluice/admission"
)

// Names of the policies.
const (
	Random            = "random"
	RoundRobin        = "round_robin"
	PowerOfTwo        = "power_of_two"
	LeastLoad         = "least_load"
	ConsistentHashing = "consistent_hashing"
)

// Default is the policy of a role for which none was named.
const Default = PowerOfTwo

var makers = map[string]func(rng) admission.Policy{
	Random:            func(r rng) admission.Policy { return &random{rng: r} },
	RoundRobin:        func(rng) admission.Policy { return &roundRobin{last: -1} },
	PowerOfTwo:        func(r rng) admission.Policy { return &powerOfTwo{rng: r} },
	LeastLoad:         func(r rng) admission.Policy { return &leastLoad{passing: powerOfTwo{rng: r}} },
	ConsistentHashing: func(r rng) admission.Policy { return newConsistentHashing(r) },
}

// Names returns the names that New knows, sorted.
func Names() []string {
	names := make([]string, 0, len(makers))
	for n := range makers {
		names = append(names, n)
	}
	slices.Sort(names)
	return names
}

// New returns a factory of the policy called name. The choices of two factories
// with the same seed are the same for the same history of a pool.
func New(name string, seed uint64) (admission.PolicyFactory, error) {
	mk, ok := makers[name]
	if !ok {
		return nil, fmt.Errorf("unknown policy %q: known are %s", name, strings.Join(Names(), ", "))
	}
	return func(model string, role admission.Role) admission.Policy {
		return mk(rng{state: seed ^ HashKey(model) ^ mix(uint64(role)+1)})
	}, nil
}

// PerRole uses one factory for prefill ranks, one for decode ranks and rest for
// all others. A nil prefill or decode stands for rest.
func PerRole(rest, prefill, decode admission.PolicyFactory) admission.PolicyFactory {
	return func(model string, role admission.Role) admission.Policy {
		switch {
		case role == admission.RolePrefill && prefill != nil:
			return prefill(model, role)
		case role == admission.RoleDecode && decode != nil:
			return decode(model, role)
		}
		return rest(model, role)
	}
}
