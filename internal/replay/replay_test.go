package replay

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unicode/utf8"
)

// run replays a trace with one arm.
func run(t *testing.T, tr *Trace, o Options, arm string) *Result {
	t.Helper()
	results, err := Run(tr, o, []string{arm})
	if err != nil {
		t.Fatal(err)
	}
	for r, err := range results {
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	panic("no result")
}

// exactly is a trace whose requests come when it says.
func exactly(t *testing.T, text string) *Trace {
	tr := read(t, text)
	tr.Grain = 0
	return tr
}

// Conversations is a made-up trace: sessions whose prompts grow by what was said, with a
// beginning that all share.
func conversations(sessions, turns int) *Trace {
	rng := rand.New(rand.NewPCG(1, 2))
	type line struct {
		Timestamp int      `json:"timestamp"`
		Input     int      `json:"input_length"`
		Output    int      `json:"output_length"`
		IDs       []uint64 `json:"hash_ids"`
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	id := uint64(0)
	for s := range sessions {
		ids := []uint64{0}
		at := s * 3000 / 2
		for range turns {
			for range 2 + rng.IntN(8) {
				id++
				ids = append(ids, id)
			}
			_ = enc.Encode(line{at, len(ids) * 512, 100, ids})
			at += 3000 * (5 + rng.IntN(20))
		}
	}
	tr, err := Read(&b)
	if err != nil {
		panic(err)
	}
	return tr
}

// One worker computes 1,000 tokens a second. The second prompt waits for the first one and
// finds its first block; the third finds nothing, as the second one's blocks took its place.
func TestPrefillByHand(t *testing.T) {
	tr := exactly(t, `{"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]}
{"timestamp": 500, "input_length": 1000, "hash_ids": [1, 3]}
{"timestamp": 9000, "input_length": 1024, "hash_ids": [7, 2]}`)
	o := Default()
	o.Workers, o.TokensPerSecond, o.CacheBlocks, o.TTFTGoal = 1, 1000, 2, 1100*time.Millisecond
	r := run(t, tr, o, "round_robin")
	want := []struct {
		cached int64
		ttft   float64
	}{{0, 1.024}, {512, 1.024 + 0.488 - 0.5}, {0, 1.024}}
	for i, w := range want {
		if got := r.Requests[i]; got.Cached != w.cached || math.Abs(got.TTFT-w.ttft) > 1e-6 || got.Queued != 0 {
			t.Errorf("request %d: %+v, want %+v", i, got, w)
		}
	}
	if r.HitRate != 512.0/3048 || r.Goodput != 1 || r.Busiest != 1 || r.TTFTP50 != 1.024 || r.Rejected != 0 {
		t.Errorf("%+v", r.Summary)
	}
}

// With one slot and a queue of one, the second request waits at the gate and the third is
// rejected.
func TestGateByHand(t *testing.T) {
	tr := exactly(t, `{"timestamp": 0, "input_length": 1000}
{"timestamp": 100, "input_length": 1000}
{"timestamp": 200, "input_length": 1000}`)
	o := Default()
	o.Workers, o.TokensPerSecond, o.Slots, o.QueueSize, o.TTFTGoal = 1, 1000, 1, 1, time.Second
	r := run(t, tr, o, "gate_power_of_two")
	second := r.Requests[1]
	if r.Rejected != 1 || !r.Requests[2].Rejected || math.Abs(second.Queued-0.9) > 1e-6 || math.Abs(second.TTFT-1.9) > 1e-6 {
		t.Fatalf("%+v", r.Requests)
	}
	if r.Goodput != 1.0/3 {
		t.Fatalf("goodput %v counts what was late or rejected", r.Goodput)
	}
	o.QueueSize, o.QueueTimeout = 0, 500*time.Millisecond
	if r = run(t, tr, o, "gate_power_of_two"); r.Rejected != 2 || math.Abs(r.Requests[1].Total-0.5) > 1e-6 {
		t.Fatalf("after a wait that is too long: %+v", r.Requests)
	}
}

// A decode step takes 10 ms and 1 ms for each request that runs. The worker has blocks for
// one of the two requests at a time.
func TestDecodeByHand(t *testing.T) {
	tr := exactly(t, `{"timestamp": 0, "input_length": 512, "output_length": 100, "hash_ids": [1]}
{"timestamp": 0, "input_length": 512, "output_length": 100, "hash_ids": [2]}`)
	o := Default()
	o.Workers, o.TokensPerSecond = 2, 512 // both prompts take a second
	o.DecodeStep, o.DecodePerRequest, o.DecodeBlocks = 10*time.Millisecond, time.Millisecond, 3
	r := run(t, tr, o, "round_robin")
	first, second := r.Requests[0], r.Requests[1]
	if math.Abs(first.TTFT-1.011) > 1e-6 || math.Abs(first.Total-2.1) > 1e-6 {
		t.Errorf("first: %+v", first)
	}
	if math.Abs(second.TTFT-2.111) > 1e-6 || math.Abs(second.Total-3.2) > 1e-6 || second.Decode != "decode-0" {
		t.Errorf("second: %+v", second)
	}
	o.DecodeBlocks = 0
	if r = run(t, tr, o, "round_robin"); math.Abs(r.Requests[0].Total-2.2) > 1e-6 || math.Abs(r.Requests[1].Total-2.2) > 1e-6 {
		t.Errorf("side by side: %+v", r.Requests)
	}
}

// An engine that does both stands still with decode while it computes a prompt.
func TestAggregatedByHand(t *testing.T) {
	tr := exactly(t, `{"timestamp": 0, "input_length": 500, "output_length": 100}
{"timestamp": 1000, "input_length": 500, "output_length": 100}`)
	o := Default()
	o.Aggregated, o.Workers, o.TokensPerSecond, o.DecodeStep = true, 1, 1000, 10*time.Millisecond
	r := run(t, tr, o, "power_of_two")
	first, second := r.Requests[0], r.Requests[1]
	if first.TTFT != 0.5 || math.Abs(first.Total-2) > 1e-6 || second.TTFT != 0.5 || math.Abs(second.Total-1.5) > 1e-6 {
		t.Fatalf("%+v", r.Requests)
	}
}

func TestSameNumberSameResult(t *testing.T) {
	tr := conversations(60, 5)
	o := Default()
	o.Workers, o.CacheBlocks, o.Routers, o.DecodeStep = 4, 200, 2, 5*time.Millisecond
	all := func(random uint64) string {
		o.Random = random
		results, err := Run(tr, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		var b bytes.Buffer
		rows := NewCSV(&b)
		for r, err := range results {
			if err != nil {
				t.Fatal(err)
			}
			if err := WriteJSON(&b, r); err != nil {
				t.Fatal(err)
			}
			if err := rows.Write(r); err != nil {
				t.Fatal(err)
			}
		}
		if err := rows.Flush(); err != nil {
			t.Fatal(err)
		}
		return b.String()
	}
	if one := all(1); one != all(1) {
		t.Error("the same number gave another result")
	} else if one == all(2) {
		t.Error("another number gave the same result")
	}
}

// What the arms are there to show, on conversations in a fleet that is busy: the caches are
// used by those that know them, and by nobody else.
func TestArmsThatKnowCachesHitThem(t *testing.T) {
	tr := conversations(200, 6)
	o := Default()
	o.Workers, o.CacheBlocks, o.TokensPerSecond = 4, 1000, 4000
	hits := map[string]float64{}
	for _, a := range Arms() {
		r := run(t, tr, o, a.Name)
		hits[a.Name] = r.HitRate
		if r.Rejected > 0 || r.HitRate > r.Ideal || r.Arm != a.Name || r.TTFTP50 > r.TTFTP99 {
			t.Errorf("%+v", r.Summary)
		}
	}
	for _, know := range []string{"cache_aware_exact", "cache_aware_approximate", "consistent_hashing"} {
		for _, not := range []string{"round_robin", "power_of_two", "gate_power_of_two"} {
			if hits[know] < hits[not]+0.1 {
				t.Errorf("%s hits %.3f, %s %.3f", know, hits[know], not, hits[not])
			}
		}
	}
}

func TestEachRouterKnowsItsOwnRequests(t *testing.T) {
	tr := exactly(t, `{"timestamp": 0, "input_length": 5120, "hash_ids": [1,2,3,4,5,6,7,8,9,10]}
{"timestamp": 60000, "input_length": 5120, "hash_ids": [1,2,3,4,5,6,7,8,9,10]}`)
	o := Default()
	o.Routers = 2
	if r := run(t, tr, o, "cache_aware_approximate"); r.Requests[1].Believed != 0 || r.Requests[1].Router != 1 {
		t.Errorf("the second router knew what the first one had sent: %+v", r.Requests[1])
	}
	if r := run(t, tr, o, "cache_aware_exact"); r.Requests[1].Believed != 5120 || r.Requests[1].Cached != 5120 {
		t.Errorf("the second router did not hear of the first one's request: %+v", r.Requests[1])
	}
}

func TestOptionsAreChecked(t *testing.T) {
	o := Options{Speed: math.NaN(), AffinityWait: -1, CacheBlocks: -1, DecodeBlocks: -1, AffinityMaxPasses: -1, CacheMinMatch: 2, CacheWeight: math.Inf(1), DecodeStep: -1}
	_, err := Run(conversations(1, 1), o, nil)
	if n := strings.Count(fmt.Sprint(err), "\n") + 1; err == nil || n != 15 {
		t.Errorf("%d faults: %v", n, err)
	}
	if _, err = Run(conversations(1, 1), Default(), []string{"none"}); err == nil || !strings.Contains(err.Error(), "known are round_robin, ") {
		t.Error(err)
	}
}

func TestTableFitsTheTerminal(t *testing.T) {
	r := run(t, conversations(20, 3), Default(), "consistent_hashing")
	for width := 20; width < 130; width++ {
		var b bytes.Buffer
		table := NewTable(&b, width, 10*time.Second, []string{"consistent_hashing"})
		for range 2 {
			if err := table.Write(r); err != nil {
				t.Fatal(err)
			}
		}
		for line := range strings.Lines(b.String()) {
			if n := utf8.RuneCountInString(line) - 1; n >= width {
				t.Fatalf("a line of %d at %d: %q", n, width, line)
			}
		}
		for _, figure := range []string{"≤10s %", percent(r.HitRate), "busiest"} {
			if !strings.Contains(b.String(), figure) {
				t.Fatalf("no %s at %d:\n%s", figure, width, b.String())
			}
		}
	}
}

func TestJSONHasItsFields(t *testing.T) {
	var b bytes.Buffer
	if err := WriteJSON(&b, run(t, conversations(2, 2), Default(), "round_robin")); err != nil {
		t.Fatal(err)
	}
	var fields map[string]any
	if err := json.Unmarshal(b.Bytes(), &fields); err != nil || bytes.Count(b.Bytes(), []byte("\n")) != 1 {
		t.Fatal(err)
	}
	want := strings.Fields("arm hit_rate ideal ttft_mean_s ttft_p50_s ttft_p95_s ttft_p99_s goodput rejected busiest_over_mean")
	for _, f := range want {
		if _, ok := fields[f]; !ok {
			t.Errorf("no %s in %s", f, b.String())
		}
	}
	if len(fields) != len(want) {
		t.Error(b.String())
	}
}

func TestCSVHasARowForEachRequest(t *testing.T) {
	var b bytes.Buffer
	rows := NewCSV(&b)
	tr := conversations(3, 2)
	for _, a := range []string{"round_robin", "gate_strict"} {
		if err := rows.Write(run(t, tr, Default(), a)); err != nil {
			t.Fatal(err)
		}
	}
	if err := rows.Flush(); err != nil {
		t.Fatal(err)
	}
	all, err := csv.NewReader(&b).ReadAll()
	if err != nil || len(all) != 1+2*6 || all[0][0] != "arm" || all[7][0] != "gate_strict" {
		t.Fatalf("%v: %v", all, err)
	}
}

func TestCacheDropsTheOldestAndOfAPromptItsEnd(t *testing.T) {
	tr := read(t, `{"timestamp": 0, "input_length": 2560, "hash_ids": [1, 2, 3, 4, 5]}
{"timestamp": 1, "input_length": 1024, "hash_ids": [8, 9]}`)
	long, short := tr.Requests[0].Blocks, tr.Requests[1].Blocks
	c := newCache(4)
	if out := c.store(long, nil); len(out) != 1 || out[0] != long[4] || c.match(long) != 4 {
		t.Fatalf("%v, holds %d", out, c.match(long))
	}
	if out := c.store(short, nil); len(out) != 2 || out[0] != long[3] || out[1] != long[2] || c.match(long) != 2 {
		t.Fatalf("%v, holds %d", out, c.match(long))
	}
	c.store(long[:1], nil)
	if out := c.store(long[3:], nil); len(out) != 2 || out[0] != long[1] || out[1] != short[1] || c.match(long) != 1 {
		t.Fatalf("%v, holds %d", out, c.match(long))
	}
}

// The page is one file of valid XML-like HTML that asks for nothing from elsewhere and runs
// nothing, whatever names are in it.
func TestPageStandsAlone(t *testing.T) {
	page := NewPage("<script>alert(1)</script>", 10*time.Second, [][2]string{{"--workers", "8"}})
	tr := conversations(20, 3)
	for _, a := range Arms() {
		page.Add(run(t, tr, Default(), a.Name))
	}
	var b bytes.Buffer
	if err := page.Write(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, no := range []string{"<script", "http:", "https:", "src=", "url(", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(text, no) {
			t.Errorf("the page has %s", no)
		}
	}
	if n := strings.Count(text, "<svg "); n != 4 || strings.Count(text, "</svg>") != n || strings.Count(text, "<polyline") != 3*len(Arms()) {
		t.Errorf("%d plots, %d lines", n, strings.Count(text, "<polyline"))
	}
	for _, a := range Arms() {
		if !strings.Contains(text, "</span>"+a.Name+"</td>") {
			t.Errorf("%s is not in the table", a.Name)
		}
	}
}

// A page of a trace of which nothing was served, or of no time, can be drawn, too.
func TestPageOfNothing(t *testing.T) {
	o := Default()
	o.Workers, o.TokensPerSecond, o.Slots, o.QueueTimeout = 1, 1, 1, time.Second
	tr := exactly(t, `{"timestamp": 0, "input_length": 0}`)
	page := NewPage("", time.Millisecond, nil)
	page.Add(run(t, tr, o, "gate_strict"))
	page.arms = append(page.arms, pageArm{quantiles: make([]float64, 101)})
	var b bytes.Buffer
	if err := page.Write(&b); err != nil || strings.Contains(b.String(), "NaN") {
		t.Fatal(err, b.String())
	}
}

// In a fleet that is full a gate that lets the first come first has the caches hit nothing; one
// that looks at several waiters keeps conversations where their blocks are.
func TestLateBindingKeepsHitsInAFullFleet(t *testing.T) {
	tr := conversations(200, 6)
	o := Default()
	o.Workers, o.CacheBlocks, o.TokensPerSecond, o.Slots = 4, 1000, 2500, 2
	first := run(t, tr, o, "gate_first_come")
	for _, late := range []string{"gate_late_binding", "gate_late_binding_approximate", "gate_late_binding_strict"} {
		r := run(t, tr, o, late)
		if r.HitRate < first.HitRate+0.1 || r.TTFTMean > first.TTFTMean/2 {
			t.Errorf("%+v\nagainst %+v", r.Summary, first.Summary)
		}
	}
	o.AffinityLookahead = 1
	if r := run(t, tr, o, "gate_late_binding"); r.HitRate != first.HitRate || r.TTFTMean != first.TTFTMean {
		t.Errorf("with a lookahead of 1: %+v\nwant %+v", r.Summary, first.Summary)
	}
}

// Prompts of which most is alike for all, more than one worker can compute, are not left to
// the worker that had their beginning first.
func TestWhatAllShareIsCopied(t *testing.T) {
	var b bytes.Buffer
	for i := range 1500 {
		ids := []string{}
		for k := range 40 {
			ids = append(ids, fmt.Sprint(k))
		}
		fmt.Fprintf(&b, `{"timestamp": %d, "input_length": %d, "hash_ids": [%s, %d, %d]}`+"\n", 3000*(i/60), 42*512, strings.Join(ids, ", "), 1000+2*i, 1001+2*i)
	}
	tr := read(t, b.String())
	for _, a := range []string{"cache_aware_approximate", "cache_aware_exact", "gate_late_binding_approximate"} {
		if r := run(t, tr, Default(), a); r.HitRate < 0.9 || r.TTFTMean > 1 || r.Busiest > 1.2 {
			t.Errorf("%+v", r.Summary)
		}
	}
}
