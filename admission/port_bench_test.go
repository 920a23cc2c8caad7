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
