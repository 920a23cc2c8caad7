package cluster

import (
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
)

func scrape(t *testing.T, c *Collector) map[string]float64 {
	t.Helper()
	reg := prometheus.NewPedanticRegistry()
	reg.MustRegister(c)
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[strings.TrimPrefix(name, "sluice_cluster_")] = m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return got
}

func TestMetricsOfAMember(t *testing.T) {
	st := Status{
		Self: Member{Incarnation: 2}, Role: "standby", Promised: Epoch{Number: 7}, Heard: 250 * time.Millisecond, Parked: 3, ViewAge: time.Second, Fallback: "share",
		Counters: Counters{Stood: 2, Elected: 1, Resigned: 1, HandedOver: 4, TookOver: 5, Reports: 6, StoreWrites: 9, StoreErrors: 8, Items: 100, Envelopes: 10, FallbackFor: time.Minute, Dropped: [NumDrops]uint64{DropCanceled: 11}},
		View: &ClusterView{
			Epoch: Epoch{Number: 7}, Deciding: true, Suspended: 4, Claims: make([]ClaimView, 2),
			Members: []MemberView{{Member: Member{Incarnation: 1}, State: "answering"}, {Member: Member{Incarnation: 2}, State: "answering", Round: 2 * time.Millisecond, Differs: true}, {State: "lost"}},
		},
	}
	want := map[string]float64{
		"is_keeper": 0, "deciding": 1, "epoch": 7, "keeper_heard_seconds": 0.25, "parked": 3, "fallback share": 1, "fallback refuse": 0,
		"fallback_seconds_total": 60, "elections_total stood": 2, "elections_total elected": 1, "elections_total resigned": 1, "handovers_total given": 4, "handovers_total taken": 5,
		"reports_total": 6, "grants_dropped_total canceled": 11, "grants_dropped_total stale": 0, "store_writes_total": 9, "store_errors_total": 8, "items_total": 100, "batches_total": 10,
		"view_age_seconds": 1, "members answering": 2, "members lost": 1, "members silent": 0, "round_trip_seconds": 0.002, "config_differs": 1,
		"claims": 0, "suspended": 0, // those of the whole are the keeper's to tell
	}
	got := scrape(t, &Collector{Status: func() Status { return st }})
	for name, v := range want {
		if g, ok := got[name]; !ok || g != v {
			t.Errorf("%s is %v, %t; want %v", name, g, ok, v)
		}
	}
	st.Role = RoleKeeper
	got = scrape(t, &Collector{Status: func() Status { return st }})
	if got["is_keeper"] != 1 || got["claims"] != 2 || got["suspended"] != 4 {
		t.Errorf("of the keeper: %v", got)
	}
}

// Before anything is known of the others nothing is made up, and a process that is no
// member has no series of a cluster.
// What a keeper said counts no more when it is not heard: one that died said last that it
// decides.
func TestAKeeperThatIsNotHeardDoesNotDecide(t *testing.T) {
	st := Status{Heard: 200 * time.Millisecond, View: &ClusterView{Deciding: true}}
	if !st.Decides() {
		t.Error("it decides")
	}
	st.Promised.Number++ // a new one collects reports
	if st.Decides() {
		t.Error("the keeper before decides")
	}
	st.Promised.Number--
	for _, heard := range []time.Duration{-1, 3 * time.Second} {
		st.Heard = heard
		if st.Decides() {
			t.Errorf("heard %v ago: it does not decide", heard)
		}
	}
}

func TestMetricsBeforeAndWithoutACluster(t *testing.T) {
	got := scrape(t, &Collector{Status: func() Status { return Status{Heard: -1} }})
	for _, name := range []string{"keeper_heard_seconds", "view_age_seconds"} {
		if _, ok := got[name]; ok {
			t.Errorf("%s is told", name)
		}
	}
	if got["deciding"] != 0 || got["is_keeper"] != 0 {
		t.Error(got)
	}
	if got := scrape(t, &Collector{}); len(got) != 0 {
		t.Errorf("%v", got)
	}
	if problems, err := testutil.CollectAndLint(&Collector{Status: func() Status { return Status{} }}); err != nil || len(problems) > 0 {
		t.Errorf("%v %v", problems, err)
	}
}
