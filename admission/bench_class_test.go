package admission

import (
	"context"
	"fmt"
	"hash/maphash"
	"testing"
)

// benchClasses is a gate with n prefill and n decode ranks of domains
// KV-transfer domains, and the given classes.
func benchClasses(tb testing.TB, n, slots, queue, domains int, classes ...Class) *Gate {
	tb.Helper()
	g := NewGate(Options{
		Limits: Limits{PrefillSlots: slots, QueueSize: queue}, NewPolicy: newP2C,
		Classes: &Classes{Root: &Profile{Classes: classes}},
	}, NewSystemClock(), nil)
	var ch []Change
	for i := range n {
		for _, role := range []Role{RolePrefill, RoleDecode} {
			ch = append(ch, Change{Op: AddRank, Rank: NewRank(RankSpec{
				ID: fmt.Sprintf("http://%s-%d", role, i), Role: role, Models: []string{"m"}, State: RankState{Healthy: true},
				Topology: fmt.Sprint("rack", i%domains),
				Capacity: Capacity{MaxBatchedTokens: 8192, KVBlocks: 4000, BlockSize: 16},
			})})
		}
	}
	g.Apply(ch...)
	tb.Cleanup(g.Close)
	return g
}

func bothThresholds(name string) Class {
	return Class{Name: name, Quantum: 512, PrefillBusyFrac: new(1.0), DecodeBusyFrac: new(0.9)}
}

var hashSeed = maphash.MakeSeed()

func roundTrip(b *testing.B, g *Gate, target *Target, prompt []byte) {
	ctx := context.Background()
	b.ReportAllocs()
	for b.Loop() {
		h := Hint{Key: maphash.Bytes(hashSeed, prompt), HasKey: true}
		t := &Ticket{Target: target, PromptTokens: 256, Hints: [numLegs]Hint{h, h}}
		if err := g.Acquire(ctx, t); err != nil {
			b.Fatal(err)
		}
		t.StartDecode()
		t.EndPrefill()
		t.Release()
	}
}

// BenchmarkGateClasses is one request of a class with both fractions: its prompt
// of 256 tokens is hashed, a pair is selected under both thresholds, booked, and
// freed. idle finds an empty fleet; busy one where every second decode rank is
// full, every third prefill rank busy, and the rest in use.
func BenchmarkGateClasses(b *testing.B) {
	prompt := make([]byte, 1024)
	for _, domains := range []int{1, 8} {
		for _, busy := range []bool{false, true} {
			for _, n := range gateSizes {
				name := fmt.Sprintf("%d", n)
				if busy {
					name = "busy/" + name
				}
				if domains > 1 {
					name = fmt.Sprintf("domains=%d/%s", domains, name)
				}
				b.Run(name, func(b *testing.B) {
					g := benchClasses(b, n, 0, 100, domains, bothThresholds("c"))
					spec := TargetSpec{Model: "m", Shape: Disaggregated}
					if domains > 1 {
						spec.Topology = TopologyRequired
					}
					target := g.Resolve(spec)
					if busy {
						fillHalf(b, g)
					}
					roundTrip(b, g, target, prompt)
				})
			}
		}
	}
}

func fillHalf(b *testing.B, g *Gate) {
	var out []*Ticket
	for _, r := range g.core.ranks {
		if r == nil || r.role != RoleDecode {
			continue
		}
		i := r.index / 2
		k := &Ticket{
			Target:       g.core.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{fmt.Sprint("http://prefill-", i), r.id}}),
			PromptTokens: 100 * 16,
		}
		if i%3 == 0 {
			k.PromptTokens = 9000
		}
		if k.CachedTokens = 0; i%2 == 0 {
			k.ReserveTokens = 3600 * 16
		}
		if g.core.Arrive(1, k, &out); k.state != stateGranted {
			b.Fatal("not granted")
		}
	}
}

// BenchmarkGateClassesQueued is one request through 16 classes in which 10 000
// wait: it arrives, a slot is released, and the round robin serves one.
func BenchmarkGateClassesQueued(b *testing.B) {
	for _, n := range gateSizes {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var classes []Class
			for i := range 16 {
				c := bothThresholds(fmt.Sprint("c", i))
				c.Quantum = int64(100 + 50*i)
				classes = append(classes, c)
			}
			g := benchClasses(b, n, 1, 20_000, 1, classes...)
			c := g.core
			target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
			var out, running []*Ticket
			now := Instant(1)
			send := func() *Ticket {
				now++
				t := &Ticket{Target: target, PromptTokens: 256, Class: classes[int(now)%16].Name}
				c.Arrive(now, t, &out)
				return t
			}
			for range n {
				running = append(running, send())
			}
			for range 10_000 {
				send()
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				send()
				c.Release(now, running[i], &out)
				if len(out) != 1 {
					b.Fatalf("%d grants, want 1", len(out))
				}
				running[i] = out[0]
				i = (i + 1) % n
				out = out[:0]
			}
		})
	}
}

// BenchmarkGateWake is the end of one hold in a fleet with a thousand waiters:
// in one lane, and in a thousand lanes of which it concerns one. Nobody can
// start.
func BenchmarkGateWake(b *testing.B) {
	for _, lanes := range []int{1, 1000} {
		b.Run(fmt.Sprint("lanes=", lanes), func(b *testing.B) {
			g := benchClasses(b, 1024, 1, 2000, 1, bothThresholds("c"))
			c := g.core
			var out []*Ticket
			var holders []*Ticket
			for i := range 1024 {
				k := &Ticket{Target: c.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [numLegs]string{fmt.Sprint("http://prefill-", i), ""}}), PromptTokens: 256}
				c.Arrive(1, k, &out)
				holders = append(holders, k)
			}
			for i := range 1000 {
				spec := TargetSpec{Model: "m", Shape: Disaggregated}
				if lanes > 1 {
					spec.Pins[PrefillLeg] = fmt.Sprint("http://prefill-", i)
				}
				c.Arrive(Instant(2+i), &Ticket{Target: c.Resolve(spec), PromptTokens: 256}, &out)
			}
			b.ReportAllocs()
			i := 0
			for b.Loop() {
				// The tokens of a prefill end; its slot is held.
				k := holders[i]
				c.FirstToken(2000, k, &out)
				k.tokens = 256
				k.Prefill.tokens += 256
				i = (i + 1) % len(holders)
			}
			if len(out) != 0 {
				b.Fatal("somebody was granted")
			}
		})
	}
}

// BenchmarkGateReport is one report of an engine that changes what the rank has room for,
// on a fleet of n prefill and n decode ranks with classes; waiting: while requests wait
// for room on all of them.
func BenchmarkGateReport(b *testing.B) {
	for _, n := range gateSizes {
		for _, waiting := range []int{0, 1000} {
			b.Run(fmt.Sprintf("%d/waiting=%d", n, waiting), func(b *testing.B) {
				frac := 0.9
				g := NewGate(Options{
					Limits:  Limits{QueueSize: waiting, OverloadWaiting: 100},
					Classes: &Classes{Root: &Profile{DefaultFamily: "f", Buckets: []Bucket{{0, "all"}}, Classes: []Class{{Name: "c", Family: "f", Bucket: "all", Quantum: 512, DecodeBusyFrac: &frac}}}},
				}, NewSystemClock(), nil)
				defer g.Close()
				var ch, full []Change
				var ranks []*Rank
				for i := range n {
					for _, role := range []Role{RolePrefill, RoleDecode} {
						r := NewRank(RankSpec{
							ID: fmt.Sprintf("http://%s-%d", role, i), Role: role, Models: []string{"m"},
							Capacity: Capacity{MaxBatchedTokens: 8192, KVBlocks: 1000, BlockSize: 16}, State: RankState{Healthy: true},
						})
						ch = append(ch, Change{Op: AddRank, Rank: r})
						if role == RoleDecode {
							ranks = append(ranks, r)
							full = append(full, Change{Op: SetReport, Rank: r, Report: RankReport{Requests: 9, KVTokens: 15900}})
						}
					}
				}
				g.Apply(ch...)
				g.Apply(full...)
				target := g.Resolve(TargetSpec{Model: "m", Shape: Disaggregated})
				var out []*Ticket
				for range waiting {
					g.core.Arrive(g.last, &Ticket{Target: target, PromptTokens: 4000}, &out)
				}
				if g.Waiting() != waiting {
					b.Fatal("they do not wait")
				}
				report := []Change{{Op: SetReport}}
				b.ReportAllocs()
				for i := 0; b.Loop(); i++ {
					report[0].Rank, report[0].Report = ranks[i%n], RankReport{Requests: 9, KVTokens: 15900 - 16*int64(1+i/n%2)}
					g.Apply(report...)
				}
			})
		}
	}
}
