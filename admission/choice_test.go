package admission

import "testing"

// How the rank was chosen is told by what the hint said when it was granted: what the
// best eligible rank held, what the chosen one did, and why it is not the best.
func TestChoice(t *testing.T) {
	for _, c := range []struct {
		name    string
		holders [MaxHolders]string // with falling tokens: 400, 300, 200, 100
		pick    string
		full    bool // p1 has no room
		exclude string
		want    Choice
	}{
		{name: "no hint", pick: "p1", want: Choice{}},
		{name: "the best", holders: [MaxHolders]string{"p1", "p2"}, pick: "p1", want: Choice{Best: 400, Held: 400, Why: ChosenAsHolder}},
		{name: "another for its load", holders: [MaxHolders]string{"p1", "p2"}, pick: "p2", want: Choice{Best: 400, Held: 300, Why: ChosenByLoad}},
		{name: "a stranger for its load", holders: [MaxHolders]string{"p1"}, pick: "p2", want: Choice{Best: 400, Why: ChosenByLoad}},
		{name: "the best is full", holders: [MaxHolders]string{"p1", "p2"}, pick: "p2", full: true, want: Choice{Best: 400, Held: 300, Why: ChosenByRoom}},
		{name: "the best is not registered", holders: [MaxHolders]string{"gone", "p2"}, pick: "p2", want: Choice{Best: 300, Held: 300, Why: ChosenAsHolder}},
		{name: "the best is no candidate", holders: [MaxHolders]string{"down", "p2"}, pick: "p2", want: Choice{Best: 300, Held: 300, Why: ChosenAsHolder}},
		{name: "the best failed it", holders: [MaxHolders]string{"p1", "p2"}, pick: "p2", exclude: "p1", want: Choice{Best: 300, Held: 300, Why: ChosenAsHolder}},
	} {
		t.Run(c.name, func(t *testing.T) {
			ranks := map[string]*Rank{"gone": NewRank(RankSpec{ID: "gone", Role: RolePrefill})}
			core := NewCore(Options{Limits: Limits{PrefillSlots: 1, QueueSize: 9}, NewPolicy: func(string, Role) Policy { return &byName{id: c.pick} }})
			var out []*Ticket
			for _, id := range []string{"p1", "p2", "down", "d1"} {
				role := RolePrefill
				if id == "d1" {
					role = RoleDecode
				}
				ranks[id] = NewRank(RankSpec{ID: id, Worker: id, Role: role, Models: []string{"m"}, State: RankState{Healthy: id != "down"}})
				core.Apply(0, []Change{{Op: AddRank, Rank: ranks[id]}}, &out)
			}
			if c.full {
				core.Arrive(0, &Ticket{Target: core.Resolve(TargetSpec{Model: "m", Shape: Disaggregated, Pins: [2]string{"p1", ""}})}, &out)
			}
			k := &Ticket{Target: core.Resolve(TargetSpec{Model: "m", Shape: Disaggregated}), PromptTokens: 1000}
			for i, id := range c.holders {
				if id != "" {
					k.Hints[PrefillLeg].Holders[i] = Holder{ranks[id], int64(400 - 100*i)}
				}
			}
			if c.exclude != "" {
				k.Exclude.Add(PrefillLeg, ranks[c.exclude])
			}
			core.Arrive(1, k, &out)
			if k.Prefill == nil || k.Choice() != c.want {
				t.Errorf("on %v by %+v, want %+v", refOf(k.Prefill), k.Choice(), c.want)
			}
			lost := uint64(0)
			if c.want.Why == ChosenByRoom {
				lost = uint64(c.want.Best - c.want.Held)
			}
			if s := core.Stats(1); s.CacheTokensLost != lost || s.CacheTokensLostPerMinute != int64(60*lost) {
				t.Errorf("%d tokens were lost to full ranks, %d a minute; want %d", s.CacheTokensLost, s.CacheTokensLostPerMinute, lost)
			}
		})
	}
}

// byName chooses the rank of a name, where it may; else the first.
type byName struct {
	firstFit
	id string
	at map[int]string
}

func (p *byName) RankAdded(i int, id string) {
	if p.at == nil {
		p.at = map[int]string{}
	}
	p.at[i] = id
}

func (p *byName) Pick(v *View, _ *Hint) int {
	for i := range v.Len() {
		if p.at[v.Nth(i)] == p.id {
			return v.Nth(i)
		}
	}
	return v.Next(-1)
}
