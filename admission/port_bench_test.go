package admission

import (
	"fmt"
	"testing"
)

// BenchmarkPort is one request at a port, from its arrival to its end, as a keeper sees it:
// seven steps. A Hint names ranks, as those of most requests do.
func BenchmarkPort(b *testing.B) {
	for _, n := range []int{64, 4096} {
		for _, hints := range []int{0, MaxHolders} {
			b.Run(fmt.Sprintf("%d/holders=%d", n, hints), func(b *testing.B) {
				p, r := benchPort(n, hints)
				var a Answer
				var s Step
				b.ReportAllocs()
				number := uint64(0)
				for b.Loop() {
					number++
					now := Instant(number)
					s = Step{Op: StepArrive, Now: now, Ticket: number, Request: r}
					p.Take(&s, &a)
					if len(a.Decided) != 1 || !a.Decided[0].Granted {
						b.Fatal("not granted")
					}
					for _, op := range [...]StepOp{StepStartDecode, StepFirstToken, StepEndPrefill, StepEndDecode, StepForget} {
						s = Step{Op: op, Now: now, Ticket: number}
						p.Take(&s, &a)
					}
				}
			})
		}
	}
}

// benchPort is a port to n ranks, and a request with a hint.
func benchPort(n, holders int) (*Port, *Request) {
	p := NewPort(Options{
		Limits:    Limits{PrefillSlots: 8, QueueSize: 100},
		NewPolicy: func(string, Role) Policy { return leastLoaded{} },
	})
	var add []FleetChange
	for i := range n {
		role := RolePrefill
		if i%2 == 1 {
			role = RoleDecode
		}
		id := fmt.Sprintf("http://10.0.%d.%d:8000", i/256, i%256)
		add = append(add, FleetChange{Op: AddRank, Add: &RankSpec{
			ID: id, Generation: 1, Worker: id, Role: role, Models: []string{"m"},
			Capacity: Capacity{MaxBatchedTokens: 8192, KVBlocks: 10000, BlockSize: 16}, State: RankState{Healthy: true},
		}})
	}
	p.Do(Step{Op: StepApply, Now: 1, Changes: add})
	r := &Request{Target: TargetSpec{Model: "m", Shape: Disaggregated}, PromptTokens: 256}
	for i := range holders {
		r.Hints[PrefillLeg].Holders = append(r.Hints[PrefillLeg].Holders, RequestHolder{add[2*i].Add.ref(), 64})
	}
	return p, r
}

func (s *RankSpec) ref() RankRef { return RankRef{s.ID, s.Generation} }

// BenchmarkPortAdopt is the tickets of other members that come to a new keeper: as many hold
// something as wait.
func BenchmarkPortAdopt(b *testing.B) {
	for _, n := range []int{10_000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			_, r := benchPort(64, MaxHolders)
			r.Hints[PrefillLeg].Holders = r.Hints[PrefillLeg].Holders[:MaxHolders]
			var states []TicketState
			prefill, decode := r.Hints[PrefillLeg].Holders[0].Rank, RankRef{"http://10.0.0.1:8000", 1}
			for i := range n {
				states = append(states, TicketState{Ticket: uint64(2*i + 1), Request: *r, Status: StatusQueued, Arrived: true, Arrival: Instant(i + 1), QueuedAt: Instant(i + 1), Epoch: 1, Order: uint64(n - i)})
				states = append(states, TicketState{Ticket: uint64(2*i + 2), Request: *r, Status: StatusGranted, Prefill: &prefill, Decode: &decode, HoldsPrefill: i < 256, HoldsDecode: true, Tokens: -1, Blocks: -1})
			}
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				p, _ := benchPort(64, 0)
				b.StartTimer()
				p.Adopt(Instant(n+2), states)
				b.ReportMetric(float64(p.core.waiting), "waiting")
			}
		})
	}
}
