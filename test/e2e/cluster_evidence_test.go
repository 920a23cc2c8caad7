//go:build linux

package e2e

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"
)

// What the logs of all members tell, put together by the clock that all processes of the
// machine share: that a limit was not exceeded by what was granted and not given back, that
// nobody was overtaken, and that each request got one decision, in time.

// traced is a line of a member about one of its requests.
type traced struct {
	Message string        `json:"msg"`
	At      time.Duration `json:"at_ns"`
	Request uint64        `json:"request"`
	Attempt uint64        `json:"attempt"`
	Prefill string        `json:"prefill"`
	Epoch   uint64        `json:"place_epoch"`
	Place   uint64        `json:"place"`
	Alone   bool          `json:"alone"`
	Queued  bool          `json:"queued"`
	Reason  string        `json:"reason"`
	Step    string        `json:"step"`
}

// wait is a request's wait for a decision, and what it held in prefill.
type wait struct {
	member           int
	came, decided    time.Duration // decided 0: never
	canceled         bool
	reason           string // of a refusal
	prefill          string
	epoch, place     uint64
	alone            bool
	from, to         time.Duration // of the prefill slot; to 0: never
	decisions        int
	request, attempt uint64
	died             bool
}

func (w *wait) String() string {
	return fmt.Sprintf("member %d, request %d/%d: came %v, decided %v (place %d/%d, alone %t), in prefill on %s from %v to %v, died %t",
		w.member, w.request, w.attempt, w.came, w.decided, w.epoch, w.place, w.alone, w.prefill, w.from, w.to, w.died)
}

// waits reads the logs.
func (c *routerCluster) waits() (list []*wait) {
	c.t.Helper()
	for _, m := range c.members {
		m.mu.Lock()
		starts := slices.Clone(m.starts)
		m.mu.Unlock()
		for _, s := range starts {
			list = append(list, s.waits(m.index)...)
		}
	}
	return list
}

func (s *clusterStart) waits(member int) (list []*wait) {
	type key struct{ request, attempt uint64 }
	found := map[key]*wait{}
	latest := map[uint64]*wait{}
	for _, line := range s.stderr.all() {
		if !strings.Contains(line, `"cluster: request `) {
			if strings.Contains(line, "log lines were dropped") {
				s.t.Errorf("the log is not whole: %s", line)
			}
			continue
		}
		var v traced
		if json.Unmarshal([]byte(line), &v) != nil {
			continue // the last line of a process that was killed
		}
		k := key{v.Request, v.Attempt}
		w := found[k]
		if v.Step == "over" { // of the ticket, whatever its attempt
			w = latest[v.Request]
		}
		switch v.Message {
		case "cluster: request came":
			w = &wait{member: member, came: v.At, request: v.Request, attempt: v.Attempt, died: s.died != 0}
			found[k], latest[v.Request] = w, w
			list = append(list, w)
		case "cluster: request granted", "cluster: request refused":
			if w == nil {
				s.t.Errorf("member %d decides on what did not come: %s", member, line)
				continue
			}
			w.decisions++
			w.decided, w.reason, w.prefill, w.epoch, w.place, w.alone = v.At, v.Reason, v.Prefill, v.Epoch, v.Place, v.Alone
			if v.Prefill != "" {
				w.from = v.At
			}
		case "cluster: request step":
			switch {
			case w == nil || v.Step == "decode ended":
			case w.decided == 0:
				w.canceled = true
			case w.from != 0 && w.to == 0:
				w.to = v.At
			}
		}
	}
	for _, w := range list {
		if w.from != 0 && w.to == 0 {
			w.to = s.died
		}
		for _, f := range s.forgot {
			if w.from != 0 && w.from < f.from && w.to > f.to {
				w.to = f.to
			}
		}
	}
	return list
}

// clockError is how far two processes may read the common clock apart on a busy machine.
const clockError = time.Millisecond

// judge checks what the logs of all members tell. more is what may be granted beyond the
// limit of a worker, which the form of the loss allows.
func (c *routerCluster) judge(more int) {
	t := c.t
	t.Helper()
	list := c.waits()
	most := c.mostInPrefill(list, more)
	for _, w := range c.fleet.workers {
		if w.Role != "prefill" {
			continue
		}
		if peak := c.fleet.stats(w.ID).PeakPrefilling; peak > clusterLimit+more {
			t.Errorf("%d were in prefill at once at %s, and %d may be", peak, w.ID, clusterLimit+more)
		}
	}
	c.notOvertaken(list)
	latest := c.answeredOnce(list)
	granted := 0
	byMember := make([][]time.Duration, len(c.members))
	for _, w := range list {
		if w.from != 0 {
			granted++
			byMember[w.member] = append(byMember[w.member], w.decided-w.came)
		}
	}
	t.Logf("%d requests came, %d were granted; most in prefill on one worker %d of %d; latest decision after its bound: %v", len(list), granted, most, clusterLimit, latest)
	for i, waits := range byMember {
		if n := len(waits); n > 0 {
			slices.Sort(waits)
			t.Logf("member %d waited: p50 %v, p99 %v", i, waits[n/2].Round(time.Millisecond), waits[n*99/100].Round(time.Millisecond))
		}
	}
}

// mostInPrefill is the most that was granted and not given back on one worker.
func (c *routerCluster) mostInPrefill(list []*wait, more int) (most int) {
	type event struct {
		at time.Duration
		w  *wait
	}
	var events []event
	for _, w := range list {
		if w.from == 0 {
			continue
		}
		events = append(events, event{w.from, w})
		if w.to != 0 {
			events = append(events, event{w.to - clockError, w})
		}
	}
	slices.SortFunc(events, func(a, b event) int { return cmp.Compare(a.at, b.at) })
	held := map[string][]*wait{}
	for _, e := range events {
		on := held[e.w.prefill]
		if e.at != e.w.from || e.w.to != 0 && e.w.to-clockError <= e.w.from {
			held[e.w.prefill] = slices.DeleteFunc(on, func(w *wait) bool { return w == e.w })
			continue
		}
		on = append(on, e.w)
		held[e.w.prefill] = on
		if len(on) > most {
			most = len(on)
			if most > clusterLimit+more {
				text := ""
				for _, w := range on {
					text += "\n  " + w.String()
				}
				c.t.Errorf("at %v, %d are in prefill on %s, and %d may be:%s", e.at, most, e.w.prefill, clusterLimit+more, text)
			}
		}
	}
	return most
}

// overtakenBy is how much later than another a request may be seen to be granted that the
// keeper granted first. A grant to the keeper's own process counts only once another member
// knows of it: while the standby is frozen or dead that takes the half second until it is
// silent. The rest is the way of a decision to another member on a busy machine.
const overtakenBy = 500*time.Millisecond + 300*time.Millisecond

// notOvertaken checks the order of places: exactly among the requests of one process, which
// sees the keeper's decisions in their order, and over all members. A request that waited
// while something was done to its member may be granted twice, the first time in vain, and
// is left out.
func (c *routerCluster) notOvertaken(list []*wait) {
	var queued []*wait
	for _, w := range list {
		if w.place != 0 && !w.alone && w.from != 0 && w.attempt == 1 {
			queued = append(queued, w)
		}
	}
	before := func(a, b *wait) int { return cmp.Or(cmp.Compare(a.epoch, b.epoch), cmp.Compare(a.place, b.place)) }
	slices.SortFunc(queued, before)
	last := map[int]*wait{}
	wrong := 0
	for _, w := range queued {
		if o := last[w.member]; o != nil && o.decided > w.decided && o.came < w.decided && !c.restarted(w.member) && !c.touched(o) {
			if wrong++; wrong <= 3 {
				c.t.Errorf("overtaken in one process:\n  %v\n by\n  %v", o, w)
			}
		}
		if o := last[w.member]; o == nil || w.decided > o.decided {
			last[w.member] = w
		}
	}
	var latest *wait // of those with an earlier place, the one that was granted last
	for _, w := range queued {
		if latest != nil && latest.decided > w.decided+overtakenBy && latest.came < w.decided {
			if wrong++; wrong <= 3 {
				c.t.Errorf("overtaken:\n  %v\n by\n  %v", latest, w)
			}
		}
		if (latest == nil || w.decided > latest.decided) && !c.touched(w) {
			latest = w
		}
	}
	c.t.Logf("%d requests were queued; %d were overtaken", len(queued), wrong)
}

// restarted: requests of several processes have been in one place.
func (c *routerCluster) restarted(member int) bool {
	m := c.members[member]
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.starts) > 1
}

// touched tells whether something was done to a member while a request of it waited.
func (c *routerCluster) touched(w *wait) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.ContainsFunc(c.faults, func(f clusterFault) bool {
		return (f.member == w.member || f.member < 0) && f.from < w.decided && (f.to == 0 || f.to+time.Second > w.came)
	})
}

// answeredOnce checks that each request got one decision, and returns by how much the latest
// one was late.
func (c *routerCluster) answeredOnce(list []*wait) (latest time.Duration) {
	latest = -time.Hour
	bound := time.Duration(c.form.timeout) * time.Second
	wrong := 0
	for _, w := range list {
		if w.decisions > 1 || w.decisions == 0 && !w.canceled && !w.died {
			if wrong++; wrong <= 3 {
				c.t.Errorf("%d decisions: %v", w.decisions, w)
			}
		}
		if w.decisions > 0 && !c.touched(w) {
			latest = max(latest, w.decided-w.came-bound)
		}
	}
	// A tenth of a second, and what a busy machine keeps a process from running.
	if latest > 100*time.Millisecond+time.Second {
		c.t.Errorf("a decision came %v after its bound", latest)
	}
	return latest
}
