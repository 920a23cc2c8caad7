package replay

import (
	"fmt"
	"strings"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/policy"
)

// indexKind is how a router knows what caches hold.
type indexKind uint8

const (
	indexNone        indexKind = iota
	indexApproximate           // by what it sent
	indexExact                 // by the engines' events
)

// arm is one way to route the same requests.
type arm struct {
	name   string
	help   string
	policy string
	index  indexKind
	// gate: workers have slots, and requests wait for them. Without it every request starts
	// when it comes, and waits in the engine.
	gate  bool
	order admission.QueueMode
	// late: a worker with room looks at AffinityLookahead waiters, not at the first alone.
	late bool
}

// arms are all there are, in the order of the table.
var arms = []arm{
	{name: "round_robin", policy: policy.RoundRobin, help: "no gate: the workers in turn"},
	{name: "power_of_two", policy: policy.PowerOfTwo, help: "no gate: of two workers drawn, the one with fewer requests"},
	{name: "consistent_hashing", policy: policy.ConsistentHashing, help: "no gate: by the first 1,024 tokens of the prompt, as if they were a session"},
	{name: "cache_aware_approximate", policy: policy.CacheAware, index: indexApproximate, help: "no gate: cache_aware, by what the router has sent"},
	{name: "cache_aware_exact", policy: policy.CacheAware, index: indexExact, help: "no gate: cache_aware, by the engines' events"},
	{name: "gate_power_of_two", policy: policy.PowerOfTwo, gate: true, order: admission.QueueStrict, help: "slots, in the order of arrival, power_of_two"},
	{name: "gate_strict", policy: policy.CacheAware, index: indexExact, gate: true, order: admission.QueueStrict, help: "slots, queue order strict, lookahead 1: first come, first served"},
	{name: "gate_first_come", policy: policy.CacheAware, index: indexExact, gate: true, order: admission.QueueLanes, help: "slots, queue order lanes, lookahead 1"},
	{name: "gate_late_binding_approximate", policy: policy.CacheAware, index: indexApproximate, gate: true, late: true, order: admission.QueueLanes, help: "slots, queue order lanes, the lookahead, by what the router has sent"},
	{name: "gate_late_binding", policy: policy.CacheAware, index: indexExact, gate: true, late: true, order: admission.QueueLanes, help: "slots, queue order lanes, the lookahead, by the engines' events"},
	{name: "gate_late_binding_strict", policy: policy.CacheAware, index: indexExact, gate: true, late: true, order: admission.QueueStrict, help: "the same in the order strict"},
}

// Arm names an arm and says what it does.
type Arm struct{ Name, Help string }

// Arms are the arms there are.
func Arms() []Arm {
	all := make([]Arm, len(arms))
	for i, a := range arms {
		all[i] = Arm{a.name, a.help}
	}
	return all
}

// findArms returns the arms of these names, all for none.
func findArms(names []string) ([]*arm, error) {
	var found []*arm
	for i := range arms {
		if len(names) == 0 {
			found = append(found, &arms[i])
		}
	}
	for _, n := range names {
		a := armOf(n)
		if a == nil {
			known := make([]string, len(arms))
			for i := range arms {
				known[i] = arms[i].name
			}
			return nil, fmt.Errorf("unknown arm %q: known are %s", n, strings.Join(known, ", "))
		}
		found = append(found, a)
	}
	return found, nil
}

func armOf(name string) *arm {
	for i := range arms {
		if arms[i].name == name {
			return &arms[i]
		}
	}
	return nil
}

// policies makes the policies of a router's pools.
func (a *arm) policies(o *Options, seed uint64) (admission.PolicyFactory, error) {
	prompts, err := policy.NewWith(a.policy, seed, policy.Options{CacheWeight: o.CacheWeight, CacheMinMatch: o.CacheMinMatch})
	if err != nil {
		return nil, err
	}
	decode, err := policy.New(policy.LeastLoad, seed)
	if err != nil {
		return nil, err
	}
	return policy.PerRole(prompts, prompts, decode), nil
}

// starvationGuard is the default of serve's option.
const starvationGuard = 5 * time.Second

// limits are the bounds of a router's gate.
func (a *arm) limits(o *Options) admission.Limits {
	l := admission.Limits{QueueSize: noBound, StarvationGuard: starvationGuard}
	if !a.gate {
		return l
	}
	if !o.Aggregated {
		l.PrefillSlots = o.Slots
	}
	if o.QueueSize > 0 {
		l.QueueSize = o.QueueSize
	}
	l.QueueTimeout = o.QueueTimeout
	if a.late {
		l.AffinityLookahead, l.AffinityMaxPasses, l.AffinityWait = o.AffinityLookahead, o.AffinityMaxPasses, o.AffinityWait
	}
	return l
}

func (*arm) workerName(o *Options, i int) string {
	if o.Aggregated {
		return fmt.Sprintf("worker-%d", i)
	}
	return fmt.Sprintf("prefill-%d", i)
}
