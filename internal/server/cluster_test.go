package server

import (
	"context"
	"encoding/json"
	"errors"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/config"
)

// fakeCluster is a member that says what it is told to say.
type fakeCluster struct {
	mu     sync.Mutex
	status cluster.Status
	stats  admission.Stats
	age    time.Duration
	err    error // of GateStats
	ended  map[string]error
	over   error // of HandOver
	asked  []string
}

func (c *fakeCluster) Status() cluster.Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.status
}

func (c *fakeCluster) GateStats(context.Context) (admission.Stats, time.Duration, bool, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.stats, c.age, c.err == nil, c.err
}

func (c *fakeCluster) Ended(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked = append(c.asked, name)
	err, known := c.ended[name]
	if !known {
		return cluster.ErrNoMember
	}
	return err
}

func (c *fakeCluster) HandOver(context.Context) error { return c.over }

func member(name string, n cluster.Incarnation) cluster.Member {
	return cluster.Member{Name: name, Incarnation: n, Address: name, Build: "1.2.3", Seat: uint64(n), Versions: cluster.Versions{Min: 1, Max: 2}}
}

func threeMembers() *fakeCluster {
	a, b, c := member("10.0.0.1:7400", 1), member("10.0.0.2:7400", 2), member("10.0.0.3:7400", 1<<63)
	c.Versions.Max = 1
	return &fakeCluster{
		age:   300 * time.Millisecond,
		ended: map[string]error{"10.0.0.2:7400": cluster.ErrAnswers, "10.0.0.3:7400": nil},
		status: cluster.Status{
			Self: b, Role: "standby", Promised: cluster.Epoch{Number: 4, Keeper: 1}, Heard: 20 * time.Millisecond,
			StoreRead: time.Second, StoreWritten: time.Minute, StoreWrites: 3, StoreError: "it is down",
			Shares:  []cluster.ShareView{{Rank: "http://p", Limit: 4, Share: 1}},
			ViewAge: 40 * time.Millisecond,
			View: &cluster.ClusterView{
				Epoch: cluster.Epoch{Number: 4, Keeper: 1}, Keeper: a.Name, Standby: b.Name, Deciding: true, Shares: 7, Waiting: 5, Settings: a.Name,
				Members: []cluster.MemberView{
					{Member: a, State: "answering", Digest: "aa"},
					{Member: b, State: "answering", Round: 250 * time.Microsecond, Heard: 80 * time.Millisecond, Holds: 2, Waiting: 1, Digest: "aa"},
					{Member: c, State: "lost", Heard: 20 * time.Second, Digest: "bb", Differs: true},
				},
				Claims: []cluster.ClaimView{{Member: c.Name, Rank: "http://p", Load: cluster.Load{Slots: 1, Tokens: 100, Pending: 1, Active: 2, PendingBlocks: 3, ActiveBlocks: 4}, Until: 40 * time.Second}},
			},
		},
	}
}

func startMember(t *testing.T, c *fakeCluster, change func(*config.Config)) *rig {
	return start(t, func(s *setup) {
		s.server.Cluster = c
		s.cfg.Cluster.URL, s.cfg.Cluster.Name = "redis://me:hunter2@a:6379", "blue"
		if change != nil {
			change(s.cfg)
		}
	})
}

// GET /cluster tells of all members, in milliseconds, with incarnations as text (they do
// not fit into the numbers of all readers of JSON), and without the store's password.
func TestClusterDocument(t *testing.T) {
	r := startMember(t, threeMembers(), nil)
	a := r.do("GET", "/cluster", "")
	var d clusterDoc
	if err := json.Unmarshal([]byte(a.body), &d); err != nil || a.status != 200 {
		t.Fatalf("%d %v: %s", a.status, err, a.body)
	}
	if strings.Contains(a.body, "hunter2") {
		t.Error("the password of the store is shown")
	}
	if d.Name != "blue" || d.Role != "standby" || *d.HeardMS != 20 || d.Store.URL != "redis://a:6379" || *d.Store.WrittenMS != 60000 || d.Store.Error != "it is down" ||
		d.Epoch != (epochDoc{4, "0000000000000001"}) || d.Keeper != "10.0.0.1:7400" || !d.Deciding || *d.ViewAgeMS != 40 || len(d.Members) != 3 || d.Waiting != 5 {
		t.Errorf("%s", a.body)
	}
	if d.Self.Seat != 2 {
		t.Errorf("its own seat is %d", d.Self.Seat)
	}
	if m := d.Members[1]; m.RoundMS != 0.25 || m.AnsweredMS != 80 || m.Holds != 2 || m.Protocol.Max != 2 {
		t.Errorf("%+v", m)
	}
	if m := d.Members[2]; m.State != "lost" || !m.Differs || m.Incarnation != "8000000000000000" || m.AnsweredMS != 20000 {
		t.Errorf("%+v", m)
	}
	if d.Protocol == nil || *d.Protocol != (protocolDoc{1, 1}) {
		t.Errorf("the gate speaks %+v, want the version that all have", d.Protocol)
	}
	if len(d.Differ) != 1 || d.Differ[0] != "10.0.0.3:7400" || len(d.Shares) != 1 || d.SharesOf.Version != 7 {
		t.Errorf("%s", a.body)
	}
	if len(d.Claims) != 1 || d.Claims[0] != (claimDoc{"10.0.0.3:7400", "http://p", 1, 100, 3, 7, 40000}) {
		t.Errorf("%+v", d.Claims)
	}
}

// A keeper that died said last that it decides.
func TestClusterDocumentAfterTheKeeperDied(t *testing.T) {
	c := threeMembers()
	c.status.Heard, c.status.ViewAge = 4*time.Second, 4*time.Second
	r := startMember(t, c, nil)
	a := r.do("GET", "/cluster", "")
	if !strings.Contains(a.body, `"deciding":false,"why_not":"this member does not hear the keeper"`) {
		t.Error(a.body)
	}
}

// What the keeper before said last is not taken for the new one's.
func TestClusterDocumentBeforeTheNewKeeperTells(t *testing.T) {
	c := threeMembers()
	c.status.Promised = cluster.Epoch{Number: 5, Keeper: 2}
	r := startMember(t, c, nil)
	a := r.do("GET", "/cluster", "")
	if !strings.Contains(a.body, `"keeper":"10.0.0.2:7400","standby":"","deciding":false,"why_not":"a new keeper was elected`) {
		t.Error(a.body)
	}
}

// A member that knows of nobody yet tells so, and lists are lists.
func TestClusterDocumentOfANewMember(t *testing.T) {
	c := &fakeCluster{err: errors.New("no member decides"), status: cluster.Status{Self: member("a", 9), Role: "joining", Heard: -1, StoreRead: -1, StoreWritten: -1}}
	r := startMember(t, c, nil)
	a := r.do("GET", "/cluster", "")
	for _, want := range []string{`"members":[]`, `"claims":[]`, `"shares":[]`, `"keeper_heard_ms":null`, `"view_age_ms":null`, `"read_ms_ago":null`, `"why_not":"this member has heard no keeper yet"`} {
		if a.status != 200 || !strings.Contains(a.body, want) {
			t.Errorf("%d, no %s: %s", a.status, want, a.body)
		}
	}
	if d := r.admission(); d.Cluster == nil || d.Cluster.Whole || d.Cluster.Error != "no member decides" || len(d.Ranks) == 0 {
		t.Errorf("%+v", d.Cluster)
	}
	if got := r.do("GET", "/readyz", ""); got.status != 200 {
		t.Errorf("readiness depends on who decides: %d %s", got.status, got.body)
	}
}

// GET /admission at any member tells of the whole gate, and how old that is.
func TestAdmissionTellsOfTheWholeGate(t *testing.T) {
	c := threeMembers()
	c.stats = admission.Stats{Waiting: 41, Ranks: []admission.RankStats{{ID: "http://elsewhere", PrefillSlots: 3}}}
	r := startMember(t, c, nil)
	d := r.admission()
	if d.Waiting != 41 || len(d.Ranks) != 1 || d.Ranks[0].Slots != 3 {
		t.Errorf("%+v", d)
	}
	want := gateOfDoc{Role: "standby", Keeper: "10.0.0.1:7400", Whole: true, ViewAgeMS: 300, Members: 3, Differ: []string{"10.0.0.3:7400"}}
	if d.Cluster == nil || !reflect.DeepEqual(*d.Cluster, want) {
		t.Errorf("%+v, want %+v", d.Cluster, want)
	}
}

// A keeper that collects reports has no gate to tell of yet, and says why.
func TestAdmissionBeforeTheGateIsOpen(t *testing.T) {
	c := threeMembers()
	c.err = errors.New("no keeper is known")
	c.status.View.Deciding, c.status.View.WhyNot = false, "members have not reported yet"
	r := startMember(t, c, nil)
	if d := r.admission(); d.Cluster.Whole || d.Cluster.Error != "members have not reported yet" {
		t.Errorf("%+v", d.Cluster)
	}
}

// A router that is alone has no cluster, and its documents do not speak of one.
func TestNoCluster(t *testing.T) {
	r := start(t, nil)
	for _, c := range [][2]string{{"GET", "/cluster"}, {"POST", "/cluster/handover"}, {"POST", "/cluster/members/a:1/ended"}} {
		if a := r.do(c[0], c[1], ""); a.status != 404 || !strings.Contains(a.body, `"no_cluster"`) {
			t.Errorf("%v: %d %s", c, a.status, a.body)
		}
	}
	if a := r.do("GET", "/admission", ""); strings.Contains(a.body, `"cluster"`) {
		t.Error(a.body)
	}
}

// What an operator orders, and why it is not done.
func TestOrdersToTheCluster(t *testing.T) {
	c := threeMembers()
	r := startMember(t, c, nil)
	for _, tc := range []struct {
		path, want string
		status     int
		over       error
	}{
		{path: "/cluster/members/10.0.0.3:7400/ended", status: 200, want: `"state":"ended"`},
		{path: "/cluster/members/10.0.0.3%3A7400/ended", status: 200, want: `"member":"10.0.0.3:7400"`},
		{path: "/cluster/members/10.0.0.2:7400/ended", status: 409, want: "answers the others"},
		{path: "/cluster/members/10.0.0.1:7400/ended", status: 409, want: "answers the others"}, // as the keeper says
		{path: "/cluster/members/10.0.0.9:7400/ended", status: 404, want: "member_not_found"},
		{path: "/cluster/members/a/b/ended", status: 404, want: "route_not_found"},
		{path: "/cluster/members//ended", status: 404, want: "route_not_found"},
		{path: "/cluster/handover", status: 200, want: `"keeper":"10.0.0.1:7400"`},
		{path: "/cluster/handover", over: cluster.ErrNotKeeper, status: 409, want: "names as the keeper: 10.0.0.1:7400"},
		{path: "/cluster/handover", over: cluster.ErrNoSuccessor, status: 409, want: "there is no other member"},
		{path: "/cluster/handover", over: context.DeadlineExceeded, status: 504, want: "did not take over in time"},
		{path: "/cluster/handover", over: errors.New("the store is away"), status: 503, want: "the store is away"},
	} {
		c.over = tc.over
		if a := r.do("POST", tc.path, ""); a.status != tc.status || !strings.Contains(a.body, tc.want) {
			t.Errorf("%s: %d %s, want %d %s", tc.path, a.status, a.body, tc.status, tc.want)
		}
	}
	if a := r.do("GET", "/cluster/handover", ""); a.status != 405 {
		t.Errorf("GET hands over: %d", a.status)
	}
}

// The thresholds are those of all members, also where one of them is changed.
func TestThresholdsOfTheCluster(t *testing.T) {
	c := threeMembers()
	c.stats.Reject = admission.RejectThresholds{ActivePrefillTokens: ptr(int64(70)), ActiveDecodeBlocks: ptr(0.5)}
	r := startMember(t, c, nil)
	if a := r.do("GET", "/busy_threshold", ""); !strings.Contains(a.body, `"active_prefill_tokens_threshold":70`) {
		t.Error(a.body)
	}
	a := r.do("POST", "/busy_threshold", `{"active_prefill_tokens_threshold":80}`)
	if a.status != 200 || !strings.Contains(a.body, `"active_decode_blocks_threshold":0.5,"active_prefill_tokens_threshold":80`) {
		t.Error(a.body)
	}
	if got := r.gate.RejectThresholds(); *got.ActivePrefillTokens != 80 || *got.ActiveDecodeBlocks != 0.5 {
		t.Errorf("%+v", got)
	}
}

// Orders need the admin key, reading does not.
func TestKeysOfTheCluster(t *testing.T) {
	c := threeMembers()
	r := startMember(t, c, func(cfg *config.Config) { cfg.Auth.AdminAPIKey, cfg.Auth.APIKeys = "admin", []config.Secret{"client"} })
	as := func(key string) []string { return []string{"Authorization", "Bearer " + key} }
	for _, tc := range []struct {
		method, path, key string
		status            int
	}{
		{"GET", "/cluster", "", 401}, {"GET", "/cluster", "client", 200}, {"GET", "/cluster", "admin", 200},
		{"POST", "/cluster/handover", "client", 401}, {"POST", "/cluster/handover", "admin", 200},
		{"POST", "/cluster/members/10.0.0.3:7400/ended", "client", 401}, {"POST", "/cluster/members/10.0.0.3:7400/ended", "admin", 200},
	} {
		var headers []string
		if tc.key != "" {
			headers = as(tc.key)
		}
		if a := r.do(tc.method, tc.path, "", headers...); a.status != tc.status {
			t.Errorf("%s %s as %q: %d, want %d", tc.method, tc.path, tc.key, a.status, tc.status)
		}
	}
	if len(c.asked) != 1 {
		t.Errorf("asked: %q", c.asked)
	}
}

// docs/cluster.md tells of every field of GET /cluster.
func TestDocumentedClusterFields(t *testing.T) {
	_, text, _ := strings.Cut(document(t, "cluster.md"), "\n## GET /cluster\n")
	text, _, _ = strings.Cut(text, "\n## ")
	var walk func(v reflect.Type)
	walk = func(v reflect.Type) {
		switch v.Kind() {
		case reflect.Pointer, reflect.Slice:
			walk(v.Elem())
		case reflect.Struct:
			for i := range v.NumField() {
				name, _, _ := strings.Cut(v.Field(i).Tag.Get("json"), ",")
				if !strings.Contains(text, "`"+name+"`") {
					t.Errorf("docs/cluster.md does not tell of the field %s", name)
				}
				walk(v.Field(i).Type)
			}
		}
	}
	walk(reflect.TypeFor[clusterDoc]())
}
