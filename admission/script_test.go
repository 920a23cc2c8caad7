package admission

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// story runs a script against a core, in virtual time. A line is a command, and
// after "=>" what it makes happen, separated by semicolons: decisions of other
// requests in the order of the core, that of the command's own request first.
// Lines that begin with "|" are the core's state as String shows it. After each
// command all indexes are recounted; at the end nothing may have been found by
// the safety net.
//
//	limits slots=1 queue=4 timeout=30s nowait=0s health=10s
//	add p1 prefill [models=a,b | models=] [group=g] [worker=w] [STATE]   STATE: down, draining, open, half=N
//	remove p1 · set p1 STATE · begin … commit (one Apply)
//	arrive a [model=m] [agg] [legs=8] [pin=p1] [dpin=d1] [deadline=3s]
//	retry a [exclude=p1] [dexclude=d1]
//	start a · endprefill a · enddecode a · release a · cancel a
//	sleep 2s · stop · refusewaiters
//	print · old p1 (holds of the generation before)
func story(t *testing.T, script string) {
	t.Helper()
	s := &storyteller{tickets: map[string]*Ticket{}, ranks: map[string]*Rank{}, old: map[string]*Rank{}}
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
		if s.core != nil {
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
		return fmt.Sprintf("%s refused %s %s depth=%d waited=%s retry=%s", n, r.Reason, r.Resource, r.Depth, r.Waited, r.RetryAfter)
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

	switch f[0] {
	case "limits":
		l := Limits{PrefillSlots: number("slots"), QueueSize: number("queue"), QueueTimeout: duration("timeout"), NoWorkerWait: duration("nowait")}
		if s.core == nil {
			s.core = NewCore(Options{Limits: l, HealthInterval: duration("health")})
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
		spec := RankSpec{ID: f[1], Worker: f[1], Role: role, Models: []string{"m"}, PairGroup: opt["group"], State: st}
		if names, ok := opt["models"]; ok {
			spec.Models = strings.FieldsFunc(names, func(r rune) bool { return r == ',' })
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
		target := s.core.resolve(spec)
		if target == nil {
			return f[1] + " unknown model", nil
		}
		t := &Ticket{Target: target, Legs: number("legs")}
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
	case "cancel", "start", "endprefill", "enddecode", "release":
		t, err := ticket()
		if err != nil {
			return "", err
		}
		switch f[0] {
		case "cancel":
			if !s.core.Cancel(s.now, t, &out) {
				told = append(told, f[1]+" was decided")
			}
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
			for _, t := range out {
				told = append(told, fmt.Sprintf("%s at %s", s.told(t), time.Duration(s.now)))
			}
			out = out[:0]
		}
		s.now = until
	case "stop":
		s.core.StopArrivals()
	case "refusewaiters":
		s.core.RefuseWaiters(s.now, &out)
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
	return strings.Join(told, "; "), nil
}
