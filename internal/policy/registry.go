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
	CacheAware        = "cache_aware"
	PrefixHash        = "prefix_hash"
)

// pool is what a policy is made for.
type pool struct {
	rng   rng
	model string
	role  admission.Role
	opts  *Options
}

var makers = map[string]func(pool) admission.Policy{
	Random:            func(p pool) admission.Policy { return &random{rng: p.rng} },
	RoundRobin:        func(pool) admission.Policy { return &roundRobin{last: -1} },
	PowerOfTwo:        func(p pool) admission.Policy { return &powerOfTwo{rng: p.rng} },
	LeastLoad:         func(p pool) admission.Policy { return &leastLoad{passing: powerOfTwo{rng: p.rng}} },
	ConsistentHashing: func(p pool) admission.Policy { return newConsistentHashing(p.rng) },
	CacheAware:        func(p pool) admission.Policy { return newCacheAware(p) },
	PrefixHash:        func(p pool) admission.Policy { return newPrefixHash(p) },
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

// New returns a factory of the policy called name, with [DefaultOptions].
func New(name string, seed uint64) (admission.PolicyFactory, error) {
	return NewWith(name, seed, DefaultOptions())
}

// NewWith returns a factory of the policy called name. The choices of two factories
// with the same seed are the same for the same history of a pool.
func NewWith(name string, seed uint64, o Options) (admission.PolicyFactory, error) {
	mk, ok := makers[name]
	if !ok {
		return nil, fmt.Errorf("unknown policy %q: known are %s", name, strings.Join(Names(), ", "))
	}
	return func(model string, role admission.Role) admission.Policy {
		return mk(pool{rng: rng{state: seed ^ HashKey(model) ^ mix(uint64(role)+1)}, model: model, role: role, opts: &o})
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
