package fleet

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/policy"
)

// clusterBed is some fleets that are members of one cluster, whose documents a hub carries:
// of two of one name the later one counts.
type clusterBed struct {
	t       *testing.T
	members []*testbed

	mu       sync.Mutex
	docs     map[string]cluster.Document
	counter  uint64
	declared []string // all that was told, in order
	trials   map[string]cluster.RankTrial
	tried    int
}

// hub is the cluster as one member sees it.
type hub struct {
	c  *clusterBed
	at int
}

func inCluster(t *testing.T, n int, f func(c *clusterBed)) {
	synctest.Test(t, func(t *testing.T) {
		c := &clusterBed{t: t, docs: map[string]cluster.Document{}, trials: map[string]cluster.RankTrial{}}
		defer func() {
			for _, b := range c.members {
				b.Close()
				b.gate.Close()
			}
		}()
		for range n {
			c.start()
		}
		f(c)
	})
}

// start adds a member, which is told what there is.
func (c *clusterBed) start() *testbed {
	clock := admission.NewSystemClock()
	newPolicy, err := policy.New(policy.PowerOfTwo, 1)
	if err != nil {
		c.t.Fatal(err)
	}
	b := &testbed{t: c.t, prober: newFakeProber(), gate: admission.NewGate(admission.Options{NewPolicy: newPolicy}, clock, nil)}
	b.Fleet = newFleet(b.gate, settings{ModelID: "m"}.options(), clock, b.prober)
	b.Fleet.start()
	b.prober.set(well, urlA, urlB, urlC)
	i := len(c.members)
	b.JoinCluster(&hub{c, i}, cluster.Member{Name: fmt.Sprint("m", i), Incarnation: cluster.Incarnation(i + 1)})
	c.mu.Lock()
	defer c.mu.Unlock()
	c.members = append(c.members, b)
	for _, d := range c.docs {
		b.TakeDocuments([]cluster.Document{d})
	}
	return b
}

func (h *hub) Declare(list []cluster.Document) {
	c := h.c
	c.mu.Lock()
	defer c.mu.Unlock()
	for i, d := range list {
		if d.Source != "" {
			d.Origin = fmt.Sprint("m", h.at)
		}
		name := d.Key + " " + d.Source + " " + d.Origin
		was, there := c.docs[name]
		if there && was.Deleted == d.Deleted && string(was.Body) == string(d.Body) {
			list[i].Version = was.Version
			continue
		}
		if list[i].Version = was.Version; there && d.Restored {
			c.members[h.at].TakeDocuments([]cluster.Document{was})
			continue
		}
		c.counter++
		d.Version, d.Restored = cluster.Version{Counter: c.counter, Writer: cluster.Incarnation(h.at + 1)}, false
		c.docs[name], list[i].Version = d, d.Version
		c.declared = append(c.declared, name)
		for i, b := range c.members {
			if i != h.at {
				b.TakeDocuments([]cluster.Document{d})
			}
		}
	}
}

func (h *hub) Tried(list []cluster.RankTrial) {
	h.c.mu.Lock()
	defer h.c.mu.Unlock()
	for _, t := range list {
		h.c.trials[fmt.Sprint("m", h.at, " ", t.ID)] = t
		h.c.tried++
	}
}

// settle lets all become known to all.
func (c *clusterBed) settle() { c.members[0].pass(10 * time.Millisecond) }

// describe is the workers of a member, with their sources and what was set.
func describe(b *testbed) string {
	var list []string
	for _, i := range b.Infos() {
		if i.Status == StatusDraining {
			continue
		}
		s := strings.TrimPrefix(i.URL, "http://") + " " + i.Source
		if i.Drained {
			s += " drained"
		}
		for k, v := range i.Labels {
			s += " " + k + "=" + v
		}
		list = append(list, s)
	}
	slices.Sort(list)
	return strings.Join(list, ", ")
}

func (c *clusterBed) want(all ...string) {
	c.t.Helper()
	c.settle()
	for i, b := range c.members {
		want := strings.NewReplacer("A", strings.TrimPrefix(urlA, "http://"), "B", strings.TrimPrefix(urlB, "http://")).Replace(all[min(i, len(all)-1)])
		if got := describe(b); got != want {
			c.t.Errorf("m%d has %q, want %q", i, got, want)
		}
	}
}

func (c *clusterBed) wantSaved(want ...int) {
	c.t.Helper()
	for i, b := range c.members {
		if n := len(b.Registrations()); n != want[i] {
			c.t.Errorf("m%d would save %d registrations, want %d", i, n, want[i])
		}
	}
}

func (c *clusterBed) wantDeclared(n int) {
	c.t.Helper()
	c.settle()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.declared) != n {
		c.t.Errorf("%d documents were written, want %d: %v", len(c.declared), n, c.declared)
	}
}

func labelled(url, key string) WorkerSpec {
	w := WorkerSpec{URL: url, Type: config.WorkerRegular, APIKey: config.Secret(key), TopologyDomain: "rack"}
	w.TLS.ServerName, w.BootstrapPort = "engine", 1234
	return w
}

// Whatever is ordered by request at one member holds at all, and is told once.
func TestOrdersByRequestHoldAtAllMembers(t *testing.T) {
	inCluster(t, 3, func(c *clusterBed) {
		a, b, d := c.members[0], c.members[1], c.members[2]
		a.add(labelled(urlA, "key"))
		c.want("A requests")
		c.wantSaved(1, 0, 0)
		w, _ := b.Get(urlA)
		if s := w.Spec(); s.APIKey.Reveal() != "key" || s.TopologyDomain != "rack" || s.TLS.ServerName != "engine" || s.BootstrapPort != 1234 {
			t.Errorf("it is registered as %+v", s)
		}
		c.wantDeclared(1)

		if _, err := b.SetDrained(urlA, true); err != nil {
			t.Fatal(err)
		}
		c.want("A requests drained")
		if _, err := d.Patch(t.Context(), urlA, &Patch{Values: WorkerSpec{Labels: map[string]string{"zone": "x"}}}); err != nil {
			t.Fatal(err)
		}
		c.want("A requests drained zone=x")
		if _, err := a.SetDrained(urlA, false); err != nil {
			t.Fatal(err)
		}
		c.want("A requests zone=x")
		c.wantSaved(1, 0, 0)
		c.wantDeclared(4)

		// Registered at another one, too, both keep it.
		s := w.Spec()
		s.Labels = nil
		b.add(s)
		c.want("A requests")
		c.wantSaved(1, 1, 0)

		d.Remove(urlA)
		c.want("")
		c.wantSaved(0, 0, 0)
		c.wantDeclared(6)
		c.members[0].pass(time.Minute)
		c.wantDeclared(6)

		// Of two orders at one time the later counts for all.
		a.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular, Labels: map[string]string{"by": "a"}})
		d.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular, Labels: map[string]string{"by": "d"}})
		c.settle()
		c.want(describe(b))
	})
}

// What a member restores from its file counts only where nobody knows better.
func TestARestoredRegistrationIsNoNews(t *testing.T) {
	inCluster(t, 2, func(c *clusterBed) {
		a, b := c.members[0], c.members[1]
		a.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular})
		a.add(WorkerSpec{URL: urlB, Type: config.WorkerRegular})
		c.settle()
		b.Remove(urlB)
		c.want("A requests")
		r := c.start()
		for _, url := range []string{urlA, urlB} {
			spec := WorkerSpec{URL: url, Type: config.WorkerRegular, Labels: map[string]string{"old": "yes"}}
			if err := r.AddRegistration(t.Context(), Registration{Worker: spec}); err != nil {
				t.Fatal(err)
			}
		}
		c.want("A requests")
	})
}

// What a source of one member declares is known to the others, unless they have it of
// their own, and as long as somebody declares it.
func TestWhatOneMemberDiscoversIsKnownToAll(t *testing.T) {
	inCluster(t, 2, func(c *clusterBed) {
		reconcile := func(b *testbed, urls ...string) {
			t.Helper()
			var specs []WorkerSpec
			for _, u := range urls {
				specs = append(specs, WorkerSpec{URL: u, Type: config.WorkerRegular})
			}
			if err := b.Reconcile(t.Context(), "file", Declare(specs)); err != nil {
				t.Error(err)
			}
			c.settle()
		}
		a, b := c.members[0], c.members[1]
		reconcile(a, urlA, urlB)
		c.want("A file, B file", "") // b's own source may be about to declare them
		b.pass(settleTime + membershipPause)
		c.want("A file, B file", "A cluster, B cluster")
		if w, _ := b.Get(urlA); w.Info().Origin != "file of m0" {
			t.Errorf("its origin is %q", w.Info().Origin)
		}
		b.wantCandidates(urlA, urlB)
		c.wantSaved(0, 0)

		before, _ := b.Get(urlA)
		reconcile(b, urlA)
		c.want("A file, B file", "A file, B cluster")
		if after, _ := b.Get(urlA); after != before {
			t.Error("it is another registration, although only its source changed")
		}
		reconcile(a, urlA)
		c.want("A file", "A file")

		// The pod is deleted: both see it, one after the other.
		reconcile(b)
		b.pass(settleTime + membershipPause)
		c.want("A file", "")
		reconcile(a)
		b.pass(droppedTime + membershipPause)
		c.want("")
		reconcile(a, urlA)
		b.pass(settleTime + membershipPause)
		c.want("A file", "A cluster")
		reconcile(b, urlA)
		reconcile(b)
		b.pass(droppedTime + membershipPause)
		c.want("A file", "A cluster")
	})
}

// A worker that was removed by request is held out at every member whose source declares
// it, also one that starts later, until no source declares it any more.
func TestAWorkerRemovedByRequestIsHeldOutEverywhere(t *testing.T) {
	inCluster(t, 2, func(c *clusterBed) {
		reconcile := func(identity string, urls ...string) {
			t.Helper()
			for _, b := range c.members {
				list := []Declared{}
				for _, u := range urls {
					list = append(list, Declared{Worker: WorkerSpec{URL: u, Type: config.WorkerRegular}, Identity: identity})
				}
				if err := b.Reconcile(t.Context(), "pods", list); err != nil {
					t.Error(err)
				}
			}
			c.settle()
		}
		reconcile("1", urlA)
		c.want("A pods")
		c.members[1].Remove(urlA)
		c.want("")
		reconcile("1", urlA)
		c.want("")
		c.start()
		reconcile("1", urlA)
		c.members[0].pass(time.Minute)
		c.want("")
		// Another engine at the address is another worker.
		reconcile("2", urlA)
		c.want("A pods")
		c.members[0].Remove(urlA)
		c.want("")
		reconcile("")
		reconcile("2", urlA)
		c.want("A pods")
	})
}

// What was changed of a worker that sources declare is changed at all members, and ends
// with the worker.
func TestChangesOfDiscoveredWorkersHoldAtAllMembers(t *testing.T) {
	inCluster(t, 2, func(c *clusterBed) {
		reconcile := func(b *testbed, urls ...string) {
			var specs []WorkerSpec
			for _, u := range urls {
				specs = append(specs, WorkerSpec{URL: u, Type: config.WorkerRegular})
			}
			if err := b.Reconcile(t.Context(), "pods", Declare(specs)); err != nil {
				t.Error(err)
			}
			c.settle()
		}
		a, b := c.members[0], c.members[1]
		reconcile(a, urlA)
		reconcile(b, urlA)
		if _, err := a.Patch(t.Context(), urlA, &Patch{Values: WorkerSpec{MaxRunningRequests: 7, Labels: map[string]string{"zone": "x"}}, Set: []string{"max_running_requests"}}); err != nil {
			t.Fatal(err)
		}
		c.want("A pods zone=x")
		if _, err := b.SetDrained(urlA, true); err != nil {
			t.Fatal(err)
		}
		c.want("A pods drained zone=x")
		n := c.start()
		reconcile(n, urlA)
		c.want("A pods drained zone=x")
		for _, m := range c.members {
			if w, _ := m.Get(urlA); w.Spec().MaxRunningRequests != 7 {
				t.Error("its limit is not known")
			}
		}
		if _, err := a.Patch(t.Context(), urlA, &Patch{UnsetAllLabels: true, Unset: []string{"max_running_requests"}}); err != nil {
			t.Fatal(err)
		}
		c.want("A pods drained")
		if _, err := n.SetDrained(urlA, false); err != nil {
			t.Fatal(err)
		}
		c.want("A pods")
		if _, err := a.SetDrained(urlA, true); err != nil {
			t.Fatal(err)
		}
		c.want("A pods drained")
		for _, m := range c.members {
			reconcile(m)
		}
		c.want("")
		for _, m := range c.members {
			reconcile(m, urlA)
		}
		c.want("A pods")
	})
}

// What cannot be read of another member's documents is left out.
func TestDocumentsOfOthersAreChecked(t *testing.T) {
	inCluster(t, 1, func(c *clusterBed) {
		b := c.members[0]
		for _, d := range []cluster.Document{
			{Key: urlA, Body: []byte("{")},
			{Key: urlA, Body: []byte(`{"registered":{"url":"http://other","worker_type":"regular"}}`)},
			{Key: urlA, Body: []byte(`{"registered":{"url":"` + urlA + `","worker_type":"prefill"}}`)},
			{Key: "ftp://x", Body: []byte(`{"registered":{"url":"ftp://x"}}`)},
			{Key: urlA, Source: "file", Origin: "x", Body: []byte(`{"worker":{"url":"http://other"}}`)},
			{Key: urlA, Source: "file", Origin: "x", Body: []byte(`null`)},
			{Key: urlA, Body: []byte(`{"changed":{"fields":["url","api_key","priority"]}}`)},
			{Key: urlB, Deleted: true},
		} {
			b.TakeDocuments([]cluster.Document{d})
		}
		b.pass(time.Minute)
		c.want("")
		b.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular})
		c.want("A requests")
	})
}

// The cluster is told what came lately of checks and requests, when that changes.
func TestTheClusterIsToldWhatWasTried(t *testing.T) {
	inCluster(t, 1, func(c *clusterBed) {
		b := c.members[0]
		w := b.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular})
		want := func(checks, legs cluster.Trial) {
			t.Helper()
			c.mu.Lock()
			defer c.mu.Unlock()
			if got := c.trials["m0 "+urlA]; got.Checks != checks || got.Legs != legs {
				t.Errorf("checks %v, requests %v, want %v and %v", got.Checks, got.Legs, checks, legs)
			}
		}
		b.pass(2 * time.Second)
		want(cluster.Succeeded, cluster.Untried)
		r := w.Ranks()[0]
		r.ReportSuccess()
		b.pass(time.Second)
		want(cluster.Succeeded, cluster.Succeeded)
		b.pass(legLately + time.Second)
		want(cluster.Succeeded, cluster.Untried)
		c.mu.Lock()
		tried := c.tried
		c.mu.Unlock()
		b.pass(time.Minute)
		want(cluster.Succeeded, cluster.Untried)
		if c.tried != tried {
			t.Errorf("told %d times that nothing changed", c.tried-tried)
		}
		r.breaker.open(b.clock.Now(), false)
		b.pass(time.Second)
		want(cluster.Succeeded, cluster.Failed)
		b.prober.set(vanished, urlA)
		b.pass(2 * time.Minute)
		want(cluster.Failed, cluster.Failed)
	})
}

// A worker that fails another member is checked soon, however far off its next check is.
func TestAWorkerThatFailsOthersIsCheckedSoon(t *testing.T) {
	inCluster(t, 1, func(c *clusterBed) {
		b := c.members[0]
		b.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular})
		b.pass(10 * time.Second)
		tell := func(masked ...cluster.Incarnation) {
			b.TakeRows(func(f func(*cluster.Row)) {
				f(&cluster.Row{Spec: &admission.RankSpec{ID: urlA, Worker: urlA}, Masked: masked})
			})
			b.pass(0)
		}
		checks := func() int { return b.prober.count(urlA) }
		for n := checks(); checks() == n; {
			b.pass(time.Millisecond)
		}
		b.pass(checkSoonPause) // the next check is due in some seconds
		tell()
		before := checks()
		tell(7)
		if checks() != before+1 {
			t.Errorf("%d checks, want one at once", checks()-before)
		}
		tell(7)
		tell()
		tell(1)
		if checks() != before+1 {
			t.Errorf("%d checks, want none for what is no news, and none for its own failure", checks()-before-1)
		}
	})
}

// GET /workers has what the keeper knows of each rank.
func TestInfoHasTheViewOfTheCluster(t *testing.T) {
	inCluster(t, 1, func(c *clusterBed) {
		b := c.members[0]
		w := b.add(WorkerSpec{URL: urlA, Type: config.WorkerRegular})
		b.pass(time.Second)
		if i := w.Info().Ranks[0].Cluster; i != nil {
			t.Errorf("there is a view before the keeper told any: %+v", i)
		}
		b.TakeRows(func(f func(*cluster.Row)) {
			f(&cluster.Row{
				Spec:   &admission.RankSpec{ID: urlA, State: admission.RankState{Healthy: true, Breaker: admission.BreakerHalfOpen}},
				Masked: []cluster.Incarnation{1, 9}, Load: cluster.Load{PrefillLegs: 1, Slots: 1, Pending: 2, Active: 3, ActiveBlocks: 40},
			})
		})
		i := w.Info().Ranks[0].Cluster
		if i == nil || *i != (ClusterInfo{Healthy: true, Breaker: "half-open", Masked: true, MaskedFor: 2, Load: 6, PrefillSlots: 1, PendingDecode: 2, ActiveDecode: 3, activeBlocks: 40}) {
			t.Errorf("view %+v", i)
		}
		b.mu.Lock()
		defer b.mu.Unlock()
		if n := w.Ranks()[0].activeBlocksLocked(); n != 40 {
			t.Errorf("%d blocks are active by all bookings, want 40", n)
		}
	})
}
