//go:build linux

package e2e

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// clusterLoad are clients that send requests one after another, some to each member.
type clusterLoad struct {
	c    *routerCluster
	http *http.Client
	stop atomic.Bool
	wg   sync.WaitGroup

	mu sync.Mutex
	// guarded by mu
	outcomes []map[string]int // by member
	wrong    []string
	longest  []time.Duration // of those that were served, by member
	// allowed are codes that a member may answer with besides 200.
	allowed map[string]bool
}

// fewClients of a member cannot hold all slots of the fleet: what a member that was killed
// held stays booked until it is back, and the others need some room meanwhile.
const fewClients = 3

// startLoad starts n clients of each member. Every request must be served, but for those
// whose member dies meanwhile, and for what is allowed.
func (c *routerCluster) startLoad(n int, allowed ...string) *clusterLoad {
	l := &clusterLoad{c: c, http: clients(c.t), allowed: map[string]bool{}}
	for _, code := range allowed {
		l.allowed[code] = true
	}
	for _, m := range c.members {
		l.outcomes, l.longest = append(l.outcomes, map[string]int{}), append(l.longest, 0)
		for range n {
			l.wg.Go(func() {
				for !l.stop.Load() {
					l.ask(m)
				}
			})
		}
	}
	return l
}

func (l *clusterLoad) ask(m *clusterMember) {
	s := m.serving()
	if s == nil {
		time.Sleep(20 * time.Millisecond)
		return
	}
	began := sinceBoot()
	a := s.chat(l.http, brief).wait(l.c.t)
	m.mu.Lock()
	gone := s.died != 0 || m.leaving
	m.mu.Unlock()
	outcome := fmt.Sprint(a.status, " ", a.code())
	switch {
	case a.whole():
		outcome = "served"
	case gone:
		outcome = "gone"
		time.Sleep(20 * time.Millisecond)
	case l.allowed[a.code()]:
		time.Sleep(20 * time.Millisecond)
	default:
		// The process may have been killed by a proxy, which tells a little later.
		time.Sleep(200 * time.Millisecond)
		m.mu.Lock()
		gone = s.died != 0 || m.leaving
		m.mu.Unlock()
		if gone {
			outcome = "gone"
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.outcomes[m.index][outcome]++
	switch {
	case outcome == "served":
		l.longest[m.index] = max(l.longest[m.index], a.took)
	case outcome != "gone" && !l.allowed[a.code()] && len(l.wrong) < 10:
		l.wrong = append(l.wrong, fmt.Sprintf("member %d, sent at %v: %s", m.index, began, a))
	}
}

// served counts what a member has served.
func (l *clusterLoad) served(member int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.outcomes[member]["served"]
}

// goesOn waits until each running member has served n more requests.
func (l *clusterLoad) goesOn(n int) {
	l.c.t.Helper()
	before := make([]int, len(l.c.members))
	for i := range before {
		before[i] = l.served(i)
	}
	eventually(l.c.t, "all members serve", func() string {
		for i, m := range l.c.members {
			if m.serving() != nil && l.served(i) < before[i]+n {
				return fmt.Sprintf("member %d has served %d after %d", i, l.served(i), before[i])
			}
		}
		return ""
	})
}

// end lets the requests that are under way end, and judges what became of all.
func (l *clusterLoad) end() {
	t := l.c.t
	t.Helper()
	l.stop.Store(true)
	l.wg.Wait()
	l.http.CloseIdleConnections()
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, o := range l.outcomes {
		t.Logf("member %d: %v, the longest took %v", i, o, l.longest[i].Round(time.Millisecond))
	}
	for _, w := range l.wrong {
		t.Errorf("not served: %s", w)
	}
}
