package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

// happening is one entry of a run's schedule: at that time that is done to that target.
type happening struct {
	at     time.Duration
	target string
	what   string
}

func (h happening) String() string {
	return fmt.Sprintf("%7.3fs %-28s %s", h.at.Seconds(), h.target, h.what)
}

// deed is something that can be done to a target, and how it is undone. A deed without
// an undoing is over at once.
type deed struct {
	do, undo string
	most     time.Duration // the longest time between the two
	weight   int
}

// What an engine can do whose process goes on. Each is undone, so that at the end of a
// run every engine is well.
var engineFaults = []deed{
	{"kill", "restart", 2500 * time.Millisecond, 3},
	{"kill", "restart", 0, 2}, // back at its address before anybody has looked
	{"freeze", "thaw", 4 * time.Second, 3},
	{"wedge", "unwedge", 5 * time.Second, 3},
	{"slow", "fast", 3 * time.Second, 2},
	{"refuse", "admit", 1500 * time.Millisecond, 1},
	{"fault reset=body,count=4", "heal", time.Second, 1},
	{"fault reset=event,after=2,count=6", "heal", time.Second, 1},
	{"fault close=inside,after=1,count=4", "heal", time.Second, 1},
	{"fault end=event,after=2,count=4", "heal", time.Second, 1},
	{"fault freeze=event,after=1,count=2", "heal", 2 * time.Second, 1},
	{"fault freeze=body,count=2", "heal", 2 * time.Second, 1},
	{"fault status=503,count=12", "heal", time.Second, 1},
	{"fault status=500,count=14", "heal", 2 * time.Second, 1},
	{"fault kind=garbage,count=3", "heal", time.Second, 1},
}

// The same for engines by gRPC, with what only these can do.
var grpcFaults = append(slices.DeleteFunc(slices.Clone(engineFaults), func(d deed) bool { return strings.Contains(d.do, "inside") }), []deed{
	{"fault code=UNAVAILABLE,count=12", "heal", time.Second, 1},
	{"fault code=CANCELLED,count=4", "heal", time.Second, 1},
	{"fault goaway=event,after=1,count=4", "heal", time.Second, 2},
	{"fault finish=error,count=4", "heal", time.Second, 1},
	{"fault finish=abort,count=4", "heal", time.Second, 1},
	{"fault kind=no-complete,count=3", "heal", time.Second, 1},
	{"fault kind=bad-index,count=3", "heal", time.Second, 1},
}...)

// What happens to a process that holds some engines.
var processFaults = []deed{
	{"SIGSTOP", "SIGCONT", 4 * time.Second, 3},
	{"SIGKILL", "start", 2500 * time.Millisecond, 3},
	{"SIGKILL", "start", 0, 2},
	{"start with another model", "start", 3 * time.Second, 1},
}

// What can be wrong with an engine behind TLS.
var tlsFaults = []deed{
	{"kill", "restart", 2 * time.Second, 2},
	{"another certificate", "", 0, 3},
	{"a certificate nobody trusts", "another certificate", 2 * time.Second, 2},
}

// What a fleet's keepers do to engines that are well, of whatever source.
var upkeep = []deed{
	{"drain", "undrain", 2 * time.Second, 3},
	{"patch", "", 0, 2},
}

// sourceUpkeep is what a source does to one of its engines.
var sourceUpkeep = []deed{
	{"remove", "add", 4 * time.Second, 4},
	{"remove", "add", 0, 1}, // the same address again
	{"another model", "its model", 2 * time.Second, 1},
}

// sourceFaults are what happens to a source that answers nothing usable for a while.
var sourceFaults = []deed{{"fails", "works", 3 * time.Second, 1}}

// target is something that deeds are done to, with those that are possible.
type target struct {
	name   string
	groups [][]deed // at most one deed of each group is under way at a time
}

// draw draws a schedule of that length: the same for the same seed and targets. What is
// done is undone before the end, or at the end.
func draw(rng *rand.Rand, length time.Duration, targets []target) []happening {
	var out []happening
	busy := make(map[string]time.Duration) // by target and group
	for at := time.Duration(0); at < length; at += time.Duration(rng.Int64N(int64(250 * time.Millisecond))) {
		t := targets[rng.IntN(len(targets))]
		g := rng.IntN(len(t.groups))
		d := pick(rng, t.groups[g])
		key := fmt.Sprint(t.name, g)
		if free, ok := busy[key]; ok && at < free {
			continue
		}
		out = append(out, happening{at, t.name, d.do})
		if d.undo == "" {
			continue
		}
		until := at
		if d.most > 0 {
			until += time.Duration(rng.Int64N(int64(d.most)))
		}
		until = max(at, min(until, length))
		out = append(out, happening{until, t.name, d.undo})
		// A moment of quiet, in which it may be used.
		busy[key] = until + time.Duration(rng.Int64N(int64(3*time.Second)))
	}
	slices.SortStableFunc(out, func(a, b happening) int { return cmp.Compare(a.at, b.at) })
	return out
}

func pick(rng *rand.Rand, deeds []deed) deed {
	sum := 0
	for _, d := range deeds {
		sum += d.weight
	}
	n := rng.IntN(sum)
	for _, d := range deeds {
		if n -= d.weight; n < 0 {
			return d
		}
	}
	panic("BUG: no deed was picked")
}

func listed(schedule []happening) string {
	var b strings.Builder
	for _, h := range schedule {
		b.WriteString(h.String())
		b.WriteByte('\n')
	}
	return b.String()
}
