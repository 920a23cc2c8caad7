package admission

import (
	"fmt"
	"slices"
	"time"

	"pgregory.net/rapid"
)

func drawLimits(t *rapid.T) Limits {
	return Limits{
		PrefillSlots: rapid.SampledFrom([]int{1, 2, 1, 0, 3}).Draw(t, "slots"),
		QueueSize:    rapid.SampledFrom([]int{5, 20, 1, 0}).Draw(t, "queue"),
		QueueTimeout: rapid.SampledFrom([]time.Duration{5 * time.Second, 2 * time.Second, 0}).Draw(t, "timeout"),
		NoWorkerWait: rapid.SampledFrom([]time.Duration{0, time.Second}).Draw(t, "nowait"),

		StarvationGuard: rapid.SampledFrom([]time.Duration{0, time.Second, 500 * time.Millisecond, 3 * time.Second}).Draw(t, "guard"),
		RefuseEarly:     rapid.Bool().Draw(t, "early"),
		OverloadWaiting: rapid.SampledFrom([]int64{0, 0, 0, 1, 5}).Draw(t, "overload waiting"),
		OverloadUsage:   rapid.SampledFrom([]float64{0, 0, 0, 0.9, 0.5}).Draw(t, "overload usage"),
		MaxWaitingBytes: rapid.SampledFrom([]int64{0, 0, 5}).Draw(t, "bytes"),
	}
}

func maybe[T any](t *rapid.T, what string, of ...T) *T {
	if i := rapid.IntRange(0, len(of)).Draw(t, what); i > 0 {
		return &of[i-1]
	}
	return nil
}

func drawClass(t *rapid.T, name, family, bucket string) Class {
	return Class{
		Name: name, Family: family, Bucket: bucket,
		Order:                     rapid.SampledFrom([]Order{"", FCFS, WSPT, LCFS}).Draw(t, "order"),
		Quantum:                   rapid.SampledFrom([]int64{1, 16, 512, 1 << 20}).Draw(t, "quantum"),
		PrefillBusyTokens:         maybe[int64](t, "busy tokens", 0, 40, 200),
		PrefillBusyFrac:           maybe(t, "busy part", 0, 0.5, 1.5),
		DecodeBusyFrac:            maybe(t, "full part", 0.3, 0.7, 1),
		BusyWorkerRatio:           maybe(t, "busy ratio", 0.5, 1),
		RequestLimitPerWorker:     maybe(t, "request limit", 0.5, 2, 3),
		RawTokenLimitPerWorker:    maybe[float64](t, "raw limit", 100, 200, 1000),
		CachedTokenLimitPerWorker: maybe[float64](t, "cached limit", 20, 1000, 1000),
		MaxWait:                   rapid.SampledFrom([]time.Duration{0, 0, 3 * time.Second}).Draw(t, "max wait"),
	}
}

func drawProfile(t *rapid.T) *Profile {
	p := &Profile{DefaultFamily: "f", Buckets: []Bucket{{0, "lo"}, {50, "hi"}}}
	if rapid.Bool().Draw(t, "one bucket") {
		p.Buckets = p.Buckets[:1]
	}
	for _, f := range []string{"f", "g"}[:rapid.IntRange(1, 2).Draw(t, "families")] {
		for _, b := range p.Buckets {
			p.Classes = append(p.Classes, drawClass(t, f+"-"+b.Name, f, b.Name))
		}
	}
	if rapid.Bool().Draw(t, "explicit") {
		p.Classes = append(p.Classes, drawClass(t, "gold", "", ""))
	}
	if rapid.Bool().Draw(t, "impatient class") {
		c := drawClass(t, "never", "", "")
		zero := 0.0
		*rapid.SampledFrom([]**float64{&c.RequestLimitPerWorker, &c.RawTokenLimitPerWorker}).Draw(t, "never") = &zero
		p.Classes = append(p.Classes, c)
	}
	return p
}

// drawClasses is half the time no classes at all.
func drawClasses(t *rapid.T) *Classes {
	if rapid.Bool().Draw(t, "no classes") {
		return nil
	}
	cs := &Classes{Models: map[string]*Profile{}}
	if rapid.IntRange(0, 4).Draw(t, "root") > 0 {
		cs.Root = drawProfile(t)
	}
	if rapid.IntRange(0, 2).Draw(t, "profile") == 2 {
		cs.Models["b"] = drawProfile(t)
	}
	return cs
}

func drawReject(t *rapid.T) (h RejectThresholds) {
	if rapid.IntRange(0, 3).Draw(t, "reject") > 0 {
		return h
	}
	h.ActiveDecodeBlocks = maybe(t, "blocks over", 0.2, 0.8)
	h.ActivePrefillTokens = maybe[int64](t, "tokens over", 60, 300)
	h.ActivePrefillTokensFrac = maybe(t, "part over", 0.6, 2)
	return h
}

// drawReport is sometimes the end of all reports.
func drawReport(t *rapid.T) (p RankReport) {
	if rapid.IntRange(0, 4).Draw(t, "no report") == 4 {
		return p
	}
	return RankReport{
		Requests:     rapid.SampledFrom([]int64{1, 5, 0}).Draw(t, "requests"),
		Waiting:      rapid.SampledFrom([]int64{0, 1, 3, 4, 5, 9}).Draw(t, "waiting"),
		KVTokens:     rapid.SampledFrom([]int64{0, 1, 16, 100, 300, 1000, 20000}).Draw(t, "kv tokens"),
		Usage:        rapid.SampledFrom([]float64{0, 0.3, 0.41, 0.5, 0.71, 0.73, 0.9, 1}).Draw(t, "usage"),
		ActiveBlocks: rapid.SampledFrom([]int64{0, 0, 1, 6, 40}).Draw(t, "active blocks"),
	}
}

func drawAttributes(t *rapid.T) RankAttributes {
	f := RankAttributes{
		Models:    rapid.SampledFrom(someModels).Draw(t, "models"),
		PairGroup: rapid.SampledFrom([]string{"x", "x", "x", "y"}).Draw(t, "group"),
		Topology:  rapid.SampledFrom([]string{"", "r1", "r2"}).Draw(t, "topology"),
		Labels:    map[string]string{},
		Capacity: Capacity{
			MaxBatchedTokens: rapid.SampledFrom([]int64{100, 0, 300}).Draw(t, "batched"),
			KVBlocks:         rapid.SampledFrom([]int64{20, 0, 7, 63, 64, 1000}).Draw(t, "blocks"),
			BlockSize:        rapid.SampledFrom([]int64{16, 16, 0, 1, 64}).Draw(t, "block size"),
			MaxRunning:       rapid.SampledFrom([]int64{0, 2, 9}).Draw(t, "running"),
		},
		Limits: RankLimits{
			PrefillSlots: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(t, "own slots"),
			Running:      rapid.SampledFrom([]int64{0, 0, 0, 1, 3, 8}).Draw(t, "running limit"),
			Share:        drawShare(t),
		},
		Priority: rapid.SampledFrom([]int{0, 0, 0, 1, -1}).Draw(t, "priority"),
	}
	for _, k := range []string{"gpu", "zone"} {
		if v := rapid.SampledFrom([]string{"", "1", "2"}).Draw(t, k); v != "" {
			f.Labels[k] = v
		}
	}
	if rapid.Bool().Draw(t, "adapter") {
		f.Adapters = []string{"lora"}
	}
	return f
}

func isStrict(o QueueMode, cs *Classes) bool {
	return o == QueueStrict || o == QueueAuto && cs == nil
}

// generation is that of the next rank that is made.
func (w *world) generation() uint64 {
	w.nth++
	return uint64(w.nth)
}

// pairRank is one of the two ranks that every world begins with.
func (w *world) pairRank(role Role) Change {
	n := w.generation()
	r := NewRank(RankSpec{ID: fmt.Sprint(role, n), Generation: n, Worker: "w0", Role: role, Models: []string{"a"}, PairGroup: "x", State: RankState{Healthy: true}})
	return Change{Op: AddRank, Rank: r, State: r.state}
}

func drawState(t *rapid.T) RankState {
	return RankState{
		Healthy:  rapid.IntRange(0, 9).Draw(t, "down") < 9,
		Draining: rapid.IntRange(0, 9).Draw(t, "draining") == 9,
		Breaker:  rapid.SampledFrom([]Breaker{BreakerClosed, BreakerClosed, BreakerClosed, BreakerClosed, BreakerHalfOpen, BreakerHalfOpen, BreakerOpen}).Draw(t, "breaker"),
		Probes:   rapid.IntRange(0, 2).Draw(t, "probes"),
		Share:    rapid.SampledFrom([]uint16{0, 0, 0, 250, 500, 1, 1000}).Draw(t, "share"),
	}
}

func (w *world) newRank(t *rapid.T) Change {
	role := rapid.SampledFrom([]Role{RolePrefill, RoleDecode, RolePrefill, RoleDecode, RoleRegular}).Draw(t, "role")
	worker := fmt.Sprintf("w%d", rapid.IntRange(0, 2).Draw(t, "worker"))
	spec := RankSpec{
		ID: fmt.Sprintf("%s@%d", worker, rapid.IntRange(0, 1).Draw(t, "dp rank")), Generation: w.generation(), Worker: worker, Role: role,
		State: drawState(t),
	}
	f := drawAttributes(t)
	spec.Models, spec.PairGroup, spec.Topology, spec.Labels, spec.Adapters, spec.Capacity = f.Models, f.PairGroup, f.Topology, f.Labels, f.Adapters, f.Capacity
	spec.Limits, spec.Priority = f.Limits, f.Priority
	return Change{Op: AddRank, Rank: NewRank(spec), State: spec.State}
}

func drawWishes(t *rapid.T, s *TargetSpec) {
	label := func() Label {
		return Label{rapid.SampledFrom([]string{"gpu", "zone"}).Draw(t, "label"), rapid.SampledFrom([]string{"1", "2"}).Draw(t, "value")}
	}
	for l := range numLegs {
		switch rapid.IntRange(0, 5).Draw(t, "wish") {
		case 3:
			s.Require[l] = []Label{label()}
		case 4:
			for range rapid.IntRange(1, 5).Draw(t, "likes") {
				s.Prefer[l] = append(s.Prefer[l], Preference{label(), rapid.IntRange(1, 3).Draw(t, "weight")})
			}
		case 5:
			s.Allowed[l] = []string{"w0", rapid.SampledFrom([]string{"w1", "w2@0"}).Draw(t, "allowed")}
		}
	}
	if rapid.IntRange(0, 4).Draw(t, "adapted") == 4 {
		s.Adapter = "lora"
	}
	s.Topology = rapid.SampledFrom([]Topology{TopologyAny, TopologyPreferred, TopologyRequired}).Draw(t, "topology")
	s.TopologyWeight = rapid.IntRange(0, 3).Draw(t, "topology weight")
}

func drawWeight(t *rapid.T, k *Ticket) {
	k.PromptTokens = rapid.SampledFrom([]int64{16, 0, 1, 40, 100, 300}).Draw(t, "prompt")
	k.CachedTokens = min(k.PromptTokens, rapid.SampledFrom([]int64{0, 0, 16, 90}).Draw(t, "cached"))
	k.ReserveTokens = rapid.SampledFrom([]int64{0, 0, 20, 100}).Draw(t, "reserve")
	k.Bytes = rapid.SampledFrom([]int64{0, 1, 3}).Draw(t, "bytes")
	k.Class = rapid.SampledFrom(classNames).Draw(t, "class")
	if rapid.IntRange(0, 3).Draw(t, "jumps") == 3 {
		k.StrictPriority = rapid.IntRange(-1, 1).Draw(t, "strict")
		k.PriorityJump = float64(rapid.IntRange(0, 3).Draw(t, "jump"))
	}
}

// drawBypass gives k, which runs whole on a decode rank, the choice of doing otherwise. It
// returns what it may be placed on instead.
func (w *world) drawBypass(t *rapid.T, k *Ticket, spec TargetSpec) *TargetSpec {
	if rapid.IntRange(0, 9).Draw(t, "no rule") == 9 {
		return nil
	}
	k.Bypass = &BypassRule{
		Short:       rapid.Bool().Draw(t, "short"),
		PrefillBusy: maybe(t, "prefill busy", 0, 0.3, 1),
		DecodeBusy:  maybe(t, "decode busy", 0.2, 0.7, 1),
		Blocks:      int64(rapid.IntRange(0, 20).Draw(t, "bypass blocks")),
	}
	switch rapid.IntRange(0, 19).Draw(t, "instead") {
	case 17:
		return nil
	case 18:
		spec.Model = "b"
	case 19:
		return w.instead(k, spec) // it stays Bypass
	}
	spec.Shape = Disaggregated
	spec.Topology = rapid.SampledFrom([]Topology{TopologyAny, TopologyAny, TopologyPreferred, TopologyRequired}).Draw(t, "topology instead")
	return w.instead(k, spec)
}

func (w *world) instead(k *Ticket, spec TargetSpec) *TargetSpec {
	if k.Instead = w.core.Resolve(spec); k.Instead == nil {
		return nil
	}
	return &spec
}

// drawAffinity is late binding, mostly.
func drawAffinity(t *rapid.T, l *Limits) {
	l.AffinityLookahead = rapid.SampledFrom([]int{3, 32, 2, 1}).Draw(t, "lookahead")
	l.PrefillSlots = rapid.SampledFrom([]int{1, 1, 2, 0}).Draw(t, "few slots")
	l.QueueSize = rapid.SampledFrom([]int{20, 20, 5, 0}).Draw(t, "long queue")
	l.AffinityMaxPasses = rapid.SampledFrom([]int{1, 2, 0, 8}).Draw(t, "passes")
	l.AffinityWait = rapid.SampledFrom([]time.Duration{time.Second, 3 * time.Second, 500 * time.Millisecond, 0}).Draw(t, "affinity wait")
}

// drawHints are ranks of any role, registered or not, that hold a part of a prompt.
func (w *world) drawHints(t *rapid.T) (hints [numLegs][]refHolder) {
	all := append(slices.Clone(w.ref.ranks), w.ref.gone...)
	for l := range numLegs {
		left := int64(rapid.SampledFrom([]int{100, 40, 16, 300, 0}).Draw(t, "held"))
		for range rapid.IntRange(0, 4).Draw(t, "holders") {
			if len(all) == 0 {
				continue
			}
			r := rapid.SampledFrom(all).Draw(t, "holder")
			if slices.ContainsFunc(hints[l], func(h refHolder) bool { return h.rank == r }) {
				continue
			}
			hints[l] = append(hints[l], refHolder{r, left})
			left = max(left-int64(rapid.SampledFrom([]int{1, 0, 24}).Draw(t, "less")), 0)
		}
	}
	return hints
}

// realHints are the hints of t as the gate has them.
func (t *refTicket) realHints() (hints [2]Hint) {
	for l := range t.hints {
		for i, h := range t.hints[l] {
			hints[l].Holders[i] = Holder{h.rank.real, h.tokens}
		}
	}
	return hints
}
