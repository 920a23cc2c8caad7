package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/tokens"
)

// story runs a script against a core, in virtual time. A line is a command, and
// after "=>" what it makes happen, separated by semicolons: decisions of other
// requests in the order of the core, that of the command's own request first.
// Lines that begin with "|" are the core's state as String shows it. After each
// command all indexes are recounted; at the end nothing may have been found by
// the safety net.
//
//	class c quantum=1 [family=f bucket=b order=wspt tokens=N frac=F dfrac=F ratio=F reqs=F raw=F cached=F wait=3s]
//	bucket b 0 · default f · profile m (the next classes are model m's own) · order strict|lanes
//	limits slots=1 queue=4 timeout=30s nowait=0s health=10s guard=0s bytes=0 overwait=0 overuse=0 [early] [ahead=K passes=N await=3s] (the first one makes the core)
//	reload (the classes written since the last one) · reject blocks=F tokens=N frac=F
//	add p1 prefill [models=a,b | models=] [group=g] [worker=w] [ATTRIBUTES] [STATE]   STATE: down, draining, open, half=N
//	    ATTRIBUTES: batched=N kv=N block=N running=N topology=t labels=k:v,k:v adapters=a,b
//	remove p1 · set p1 STATE · attributes p1 [models=…] [group=g] [ATTRIBUTES] · begin … commit (one Apply)
//	report d1 [reqs=N] [waiting=N] [kv=N] [usage=F] [active=N] (none of it: there is no report)
//	quarantine p1 d1 · endQuarantine p1 d1
//	arrive a [model=m] [agg] [legs=8] [pin=p1] [dpin=d1] [deadline=3s] [bypass]
//	    [tokens=N] [uncached=N] [reserve=N] [bytes=N] [class=c] [prio=N] [jump=F] [cdeadline=3s]
//	    [held=p1:N,p2:N] [dheld=…] (hints; the most is cached, where uncached does not tell) [renew] (its hints)
//	    [adapter=a] [require=k:v] [drequire=k:v] [prefer=k:v*N,…] [dprefer=…] [allow=p1,p2] [dallow=…] [topology=required|preferred]
//	retry a [exclude=p1] [dexclude=d1]
//	output a N (tokens of all legs have come so far; "a +B" when B blocks are booked for them)
//	refresh a [held=…] [dheld=…]
//	first a · grow a N · move a [exclude=d1]
//	start a · endprefill a · enddecode a · release a · cancel a
//	sleep 2s · stop · drain 5s · refusewaiters
//	stats a (of its class: what it is closed by, for how long that was, and the fences set so far)
//	print · old p1 (holds of the generation before)
func story(t *testing.T, script string) {
	t.Helper()
	s := &storyteller{tickets: map[string]*Ticket{}, outputs: map[*Ticket]*output{}, ranks: map[string]*Rank{}, old: map[string]*Rank{}}
	lines := strings.Split(script, "\n")
	for i := 0; i < len(lines); i++ {
		line := strings.TrimSpace(lines[i])
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		cmd, want, _ := strings.Cut(line, "=>")
		got, err := s.run(strings.Fields(cmd))
		if err != nil {
			t.Fatalf("line %d: %s: %v", i+1, line, err)
		}
		var block []string
		for i+1 < len(lines) && strings.HasPrefix(strings.TrimSpace(lines[i+1]), "|") {
			i++
			block = append(block, strings.TrimSpace(strings.TrimPrefix(strings.TrimSpace(lines[i]), "|")))
		}
		if block != nil {
			if state := strings.TrimSpace(s.core.String()); state != strings.Join(block, "\n") {
				t.Fatalf("line %d: %s: the state is\n%s", i+1, line, state)
			}
		}
		if want = strings.TrimSpace(want); got != want {
			t.Fatalf("line %d: %s\n  got %s", i+1, line, got)
		}
		if s.core != nil && len(s.core.ranks) > 0 {
			if err := checkIndexes(s.core); err != nil {
				t.Fatalf("line %d: %s: indexes: %v", i+1, line, err)
			}
		}
	}
	if s.core.missed != 0 {
		t.Fatalf("%d events were missed", s.core.missed)
	}
}

type storyteller struct {
	core    *Core
	now     Instant
	tickets map[string]*Ticket
	ranks   map[string]*Rank
	old     map[string]*Rank
	batch   []Change
	batched bool
	classes *Classes
	profile *Profile
	mode    QueueMode
	outputs map[*Ticket]*output
}

// output counts the answer of a ticket on a rank, as the router does.
type output struct {
	tokens.OutputCounter
	rank *Rank
}

func newOutput(t *Ticket) *output {
	return &output{tokens.NewOutputCounter(tokens.OutputPlan{
		PromptTokens: t.PromptTokens, ReserveTokens: t.ReserveTokens, Legs: t.Legs, BlockSize: t.Decode.capacity.BlockSize,
	}), t.Decode}
}

func (s *storyteller) name(t *Ticket) string {
	for n, o := range s.tickets {
		if o == t {
			return n
		}
	}
	return "?"
}

func (s *storyteller) told(t *Ticket) string {
	n := s.name(t)
	switch t.state {
	case stateGranted:
		if t.Prefill == nil {
			return n + " granted " + t.Decode.id
		}
		return n + " granted " + t.Prefill.id + " " + t.Decode.id
	case stateRefused:
		r := t.refusal
		limit := ""
		if r.Reason == ClassQueueFull || r.LimitKind == LimitBytes || r.LimitKind == LimitClassWait {
			limit = fmt.Sprintf(" class=%s limit=%s:%d/%d", r.Class, r.LimitKind, r.Current, r.Limit)
		}
		if r.Predicted {
			limit += fmt.Sprintf(" predicted=%s/%s", r.Estimate.Round(100*time.Millisecond), time.Duration(r.Limit))
		}
		return fmt.Sprintf("%s refused %s %s depth=%d waited=%s retry=%s%s", n, r.Reason, r.Resource, r.Depth, r.Waited, r.RetryAfter, limit)
	case stateQueued:
		return n + " queued"
	}
	return n + " idle"
}

func parseState(words []string) (RankState, error) {
	st := RankState{Healthy: true}
	for _, w := range words {
		k, v, _ := strings.Cut(w, "=")
		switch k {
		case "down":
			st.Healthy = false
		case "draining":
			st.Draining = true
		case "open":
			st.Breaker = BreakerOpen
		case "half":
			st.Breaker = BreakerHalfOpen
			n, err := strconv.Atoi(v)
			if err != nil {
				return st, err
			}
			st.Probes = n
		}
	}
	return st, nil
}

// run carries out one command and returns what happened.
func (s *storyteller) run(f []string) (string, error) {
	var out []*Ticket
	var told []string
	opt := map[string]string{}
	for _, w := range f[1:] {
		k, v, _ := strings.Cut(w, "=")
		opt[k] = v
	}
	ticket := func() (*Ticket, error) {
		t := s.tickets[f[1]]
		if t == nil {
			return nil, fmt.Errorf("no request %q", f[1])
		}
		return t, nil
	}
	duration := func(k string) time.Duration { d, _ := time.ParseDuration(opt[k]); return d }
	number := func(k string) int { n, _ := strconv.Atoi(opt[k]); return n }
	float := func(k string) float64 { n, _ := strconv.ParseFloat(opt[k], 64); return n }
	attributes := func() RankAttributes {
		f := RankAttributes{Models: []string{"m"}, PairGroup: opt["group"], Topology: opt["topology"], Labels: map[string]string{}}
		if names, ok := opt["models"]; ok {
			f.Models = words(names)
		}
		for _, l := range labels(opt["labels"]) {
			f.Labels[l.Key] = l.Value
		}
		f.Adapters = words(opt["adapters"])
		f.Capacity = Capacity{MaxBatchedTokens: int64(number("batched")), KVBlocks: int64(number("kv")), BlockSize: int64(number("block")), MaxRunning: int64(number("running"))}
		return f
	}

	switch f[0] {
	case "class", "bucket", "default", "profile":
		s.writeClasses(f, opt)
	case "order":
		s.mode = map[string]QueueMode{"strict": QueueStrict, "lanes": QueueLanes}[f[1]]
	case "reload":
		s.core.SetClasses(s.now, s.classes, &out)
		s.classes, s.profile = nil, nil
	case "reject":
		var h RejectThresholds
		h.ActiveDecodeBlocks, h.ActivePrefillTokensFrac = fraction(opt["blocks"]), fraction(opt["frac"])
		if n := int64(number("tokens")); opt["tokens"] != "" {
			h.ActivePrefillTokens = &n
		}
		s.core.SetRejectThresholds(s.now, h, &out)
	case "attributes":
		s.batch = append(s.batch, Change{Op: SetAttributes, Rank: s.ranks[f[1]], Attributes: attributes()})
	case "report":
		s.batch = append(s.batch, Change{Op: SetReport, Rank: s.ranks[f[1]], Report: RankReport{
			Requests: int64(number("reqs")), Waiting: int64(number("waiting")), KVTokens: int64(number("kv")), Usage: float("usage"),
			ActiveBlocks: int64(number("active")),
		}})
	case "quarantine":
		s.batch = append(s.batch, Change{Op: QuarantinePair, Rank: s.ranks[f[1]], Other: s.ranks[f[2]]})
	case "endQuarantine":
		s.batch = append(s.batch, Change{Op: EndQuarantine, Rank: s.ranks[f[1]], Other: s.ranks[f[2]]})
	case "limits":
		l := Limits{
			PrefillSlots: number("slots"), QueueSize: number("queue"), QueueTimeout: duration("timeout"), NoWorkerWait: duration("nowait"),
			OverloadWaiting: int64(number("overwait")), OverloadUsage: float("overuse"),
			StarvationGuard: duration("guard"), MaxWaitingBytes: int64(number("bytes")),
			RefuseEarly:       slices.Contains(f, "early"),
			AffinityLookahead: number("ahead"), AffinityMaxPasses: number("passes"), AffinityWait: duration("await"),
		}
		if s.core == nil {
			s.core = NewCore(Options{Limits: l, HealthInterval: duration("health"), Classes: s.classes, QueueMode: s.mode, NewPolicy: func(string, Role) Policy { return mostHeld{} }})
			s.classes, s.profile = nil, nil
			s.core.tick(0)
		} else {
			s.core.SetLimits(s.now, l, &out)
		}
	case "add":
		st, err := parseState(f[3:])
		if err != nil {
			return "", err
		}
		role := Role(slices.Index([]string{"regular", "prefill", "decode", "encode"}, f[2]))
		x := attributes()
		spec := RankSpec{
			ID: f[1], Worker: f[1], Role: role, Models: x.Models, PairGroup: x.PairGroup, State: st,
			Topology: x.Topology, Labels: x.Labels, Adapters: x.Adapters, Capacity: x.Capacity,
		}
		if opt["worker"] != "" {
			spec.Worker = opt["worker"]
		}
		if r := s.ranks[f[1]]; r != nil {
			s.old[f[1]] = r
		}
		s.ranks[f[1]] = NewRank(spec)
		s.batch = append(s.batch, Change{Op: AddRank, Rank: s.ranks[f[1]]})
	case "remove":
		s.batch = append(s.batch, Change{Op: RemoveRank, Rank: s.ranks[f[1]]})
	case "set":
		st, err := parseState(f[2:])
		if err != nil {
			return "", err
		}
		s.batch = append(s.batch, Change{Op: SetState, Rank: s.ranks[f[1]], State: st})
	case "begin":
		s.batched = true
	case "commit":
		s.batched = false
	case "arrive":
		spec := TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{opt["pin"], opt["dpin"]}}
		if m, ok := opt["model"]; ok {
			spec.Model = m
		}
		if _, ok := opt["agg"]; ok {
			spec.Shape = Aggregated
		}
		if _, ok := opt["bypass"]; ok {
			spec.Shape = Bypass
		}
		wishes(&spec, opt)
		target := s.core.Resolve(spec)
		if target == nil {
			return f[1] + " unknown model", nil
		}
		t := &Ticket{
			Target: target, Legs: number("legs"), PromptTokens: int64(number("tokens")), ReserveTokens: int64(number("reserve")),
			Bytes: int64(number("bytes")), Class: opt["class"], StrictPriority: number("prio"), NoWorkerWaited: duration("before"),
		}
		t.Hints = s.hints(t, opt)
		t.CachedTokens = t.Hints[PrefillLeg].Holders[0].Tokens
		if spec.Shape != Disaggregated {
			t.CachedTokens = t.Hints[DecodeLeg].Holders[0].Tokens
		}
		if _, ok := opt["renew"]; ok {
			t.Matcher = atPort{}
		}
		if opt["uncached"] != "" {
			t.CachedTokens = t.PromptTokens - int64(number("uncached"))
		}
		if v := fraction(opt["jump"]); v != nil {
			t.PriorityJump = *v
		}
		if opt["cdeadline"] != "" {
			t.ClassDeadline = s.now.Add(duration("cdeadline"))
		}
		if opt["deadline"] != "" {
			t.Deadline = s.now.Add(duration("deadline"))
		}
		s.tickets[f[1]] = t
		s.core.Arrive(s.now, t, &out)
		told = append(told, s.told(t))
	case "retry":
		t, err := ticket()
		if err != nil {
			return "", err
		}
		t.Retry = true
		if id := opt["exclude"]; id != "" {
			t.Exclude.Add(PrefillLeg, s.ranks[id])
		}
		if id := opt["dexclude"]; id != "" {
			t.Exclude.Add(DecodeLeg, s.ranks[id])
		}
		s.core.Arrive(s.now, t, &out)
		told = append(told, s.told(t))
	case "refresh":
		t, err := ticket()
		if err != nil {
			return "", err
		}
		hints := s.hints(t, opt)
		s.core.Refresh(s.now, t, &hints, &out)
	case "move":
		t, err := ticket()
		if err != nil {
			return "", err
		}
		var exclude []*Rank
		if id := opt["exclude"]; id != "" {
			exclude = append(exclude, s.ranks[id])
		}
		if s.core.MoveDecode(s.now, t, exclude, &out) {
			told = append(told, f[1]+" moved to "+t.Decode.id)
		} else {
			told = append(told, f[1]+" cannot move")
		}
	case "output":
		t, err := ticket()
		if err != nil {
			return "", err
		}
		n, err := strconv.Atoi(f[2])
		if err != nil {
			return "", err
		}
		if o := s.outputs[t]; o == nil || o.rank != t.Decode {
			s.outputs[t] = newOutput(t)
		}
		if blocks := s.outputs[t].Seen(n, 0); blocks > 0 {
			s.core.Grow(s.now, t, blocks, &out)
			told = append(told, fmt.Sprintf("%s +%d", f[1], blocks))
		}
	case "first", "grow", "cancel", "start", "endprefill", "enddecode", "release":
		t, err := ticket()
		if err != nil {
			return "", err
		}
		switch f[0] {
		case "cancel":
			if !s.core.Cancel(s.now, t, &out) {
				told = append(told, f[1]+" was decided")
			}
		case "first":
			s.core.FirstToken(s.now, t, &out)
		case "grow":
			n, err := strconv.ParseInt(f[2], 10, 64)
			if err != nil {
				return "", err
			}
			s.core.Grow(s.now, t, n, &out)
		case "start":
			s.core.StartDecode(t)
		case "endprefill":
			s.core.EndPrefill(s.now, t, &out)
		case "enddecode":
			s.core.EndDecode(s.now, t, &out)
		case "release":
			s.core.Release(s.now, t, &out)
		}
	case "sleep":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return "", err
		}
		until := s.now.Add(d)
		for s.core.NextDeadline() <= until {
			s.now = max(s.now, s.core.NextDeadline())
			s.core.Advance(s.now, &out)
			for _, t := range s.core.Asked() {
				told = append(told, fmt.Sprintf("%s asked at %s", s.name(t), time.Duration(s.now)))
			}
			for _, t := range out {
				told = append(told, fmt.Sprintf("%s at %s", s.told(t), time.Duration(s.now)))
			}
			out = out[:0]
		}
		s.now = until
	case "stop":
		s.core.StopArrivals()
	case "drain":
		d, err := time.ParseDuration(f[1])
		if err != nil {
			return "", err
		}
		s.core.DrainWithin(s.now, d, &out)
	case "refusewaiters":
		s.core.RefuseWaiters(s.now, &out)
	case "stats":
		st := s.core.Stats(s.now)
		closed := time.Duration(0)
		for _, d := range st.ClosedByClass[s.tickets[f[1]].ClassName()] {
			closed += d
		}
		for _, k := range st.Queues[0].Classes {
			if k.Class == s.tickets[f[1]].ClassName() {
				told = append(told, fmt.Sprintf("class %s closed by %s, %s in all, fences %d", k.Class, k.ClosedBy, closed, st.Fences))
			}
		}
	case "print":
	case "old":
		r := s.old[f[1]]
		told = append(told, fmt.Sprintf("slots=%d pending=%d active=%d", r.slots, r.pending, r.active))
	default:
		return "", fmt.Errorf("unknown command")
	}
	if len(s.batch) > 0 && !s.batched {
		s.core.Apply(s.now, s.batch, &out)
		s.batch = nil
	}
	for _, t := range out {
		told = append(told, s.told(t))
	}
	if s.core != nil {
		for _, t := range s.core.Asked() {
			told = append(told, s.name(t)+" asked")
		}
	}
	return strings.Join(told, "; "), nil
}

// hints reads which ranks hold how many tokens of the prompt of t.
func (s *storyteller) hints(t *Ticket, opt map[string]string) (hints [2]Hint) {
	for l, name := range []string{"held", "dheld"} {
		hints[l].PromptTokens = t.PromptTokens
		for i, w := range words(opt[name]) {
			id, tokens, _ := strings.Cut(w, ":")
			n, _ := strconv.ParseInt(tokens, 10, 64)
			hints[l].Holders[i] = Holder{s.ranks[id], n}
		}
	}
	return hints
}

func words(s string) []string {
	return strings.FieldsFunc(s, func(r rune) bool { return r == ',' })
}

func labels(s string) (all []Label) {
	for _, w := range words(s) {
		k, v, _ := strings.Cut(w, ":")
		all = append(all, Label{k, v})
	}
	return all
}

func fraction(s string) *float64 {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil {
		return nil
	}
	return &v
}

// wishes reads what a target wants beside its pins.
func wishes(spec *TargetSpec, opt map[string]string) {
	spec.Adapter = opt["adapter"]
	spec.Topology = map[string]Topology{"required": TopologyRequired, "preferred": TopologyPreferred}[opt["topology"]]
	for l, prefix := range []string{"", "d"} {
		spec.Require[l] = labels(opt[prefix+"require"])
		if names, ok := opt[prefix+"allow"]; ok {
			spec.Allowed[l] = append([]string{}, words(names)...)
		}
		for _, w := range words(opt[prefix+"prefer"]) {
			name, weight, _ := strings.Cut(w, "*")
			n, _ := strconv.Atoi(weight)
			spec.Prefer[l] = append(spec.Prefer[l], Preference{labels(name)[0], n})
		}
	}
}

// writeClasses adds to the classes that the core will be made with, or reloaded.
func (s *storyteller) writeClasses(f []string, opt map[string]string) {
	if s.classes == nil {
		s.classes = &Classes{Models: map[string]*Profile{}}
	}
	if f[0] == "profile" {
		s.profile = &Profile{}
		s.classes.Models[f[1]] = s.profile
		return
	}
	if s.profile == nil {
		s.profile = &Profile{}
		s.classes.Root = s.profile
	}
	p := s.profile
	switch f[0] {
	case "default":
		p.DefaultFamily = f[1]
	case "bucket":
		n, _ := strconv.ParseInt(f[2], 10, 64)
		p.Buckets = append(p.Buckets, Bucket{MinTokens: n, Name: f[1]})
	case "class":
		c := Class{Name: f[1], Family: opt["family"], Bucket: opt["bucket"], Order: Order(opt["order"]), Quantum: 1}
		if n, err := strconv.ParseInt(opt["quantum"], 10, 64); err == nil {
			c.Quantum = n
		}
		if n, err := strconv.ParseInt(opt["tokens"], 10, 64); err == nil {
			c.PrefillBusyTokens = &n
		}
		c.PrefillBusyFrac, c.DecodeBusyFrac, c.BusyWorkerRatio = fraction(opt["frac"]), fraction(opt["dfrac"]), fraction(opt["ratio"])
		c.RequestLimitPerWorker, c.RawTokenLimitPerWorker, c.CachedTokenLimitPerWorker = fraction(opt["reqs"]), fraction(opt["raw"]), fraction(opt["cached"])
		c.MaxWait, _ = time.ParseDuration(opt["wait"])
		p.Classes = append(p.Classes, c)
	}
}
