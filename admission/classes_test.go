package admission

import (
	"math"
	"strings"
	"testing"
	"time"
)

func ptr[T any](v T) *T { return &v }

// validClasses is a profile with two families over two buckets and an explicit
// class, so that each test can spoil one thing.
func validClasses() *Classes {
	return &Classes{Root: &Profile{
		DefaultFamily: "regular",
		Buckets:       []Bucket{{0, "short"}, {4096, "long"}},
		Classes: []Class{
			{Name: "r-short", Family: "regular", Bucket: "short", Quantum: 128},
			{Name: "r-long", Family: "regular", Bucket: "long", Quantum: 128, Order: WSPT, PrefillBusyTokens: ptr(int64(0)), PrefillBusyFrac: ptr(1.5)},
			{Name: "p-short", Family: "premium", Bucket: "short", Quantum: 512, DecodeBusyFrac: ptr(1.0), BusyWorkerRatio: ptr(0.5)},
			{Name: "p-long", Family: "premium", Bucket: "long", Quantum: 512, RequestLimitPerWorker: ptr(0.0), MaxWait: time.Second},
			{Name: "probe", Quantum: 1, Order: LCFS},
		},
	}}
}

func TestClassesValidate(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(c *Classes, p *Profile)
		want  string // all of the errors; "": none
	}{
		{"valid", func(*Classes, *Profile) {}, ""},
		{"nothing", func(c *Classes, _ *Profile) { c.Root = nil }, ""},
		{"synthetic", func(c *Classes, _ *Profile) { *c = *SyntheticClasses(ptr(0.0), FCFS) }, ""},
		{"empty profile", func(_ *Classes, p *Profile) { *p = Profile{} }, `default_policy_family: is missing: default_policy_family, uncached_isl_buckets and policy_classes go together, or none of them
uncached_isl_buckets: is missing or empty: default_policy_family, uncached_isl_buckets and policy_classes go together, or none of them
policy_classes: is missing or empty: default_policy_family, uncached_isl_buckets and policy_classes go together, or none of them`},
		{"default family", func(_ *Classes, p *Profile) { p.DefaultFamily = "probe" }, `default_policy_family: "probe": is the policy_family of no class`},
		{"name", func(_ *Classes, p *Profile) { p.Classes[4].Name = "a b" }, `policy_classes[4].name: "a b": must be of letters, digits, '_', '.' and '-'`},
		{"no name", func(_ *Classes, p *Profile) { p.Classes[4].Name = "" }, `policy_classes[4].name: is missing`},
		{"long name", func(_ *Classes, p *Profile) { p.Classes[4].Name = strings.Repeat("x", 129) }, `policy_classes[4].name: "` + strings.Repeat("x", 129) + `": is longer than 128 bytes`},
		{"name twice", func(_ *Classes, p *Profile) { p.Classes[4].Name = "r-long" }, `policy_classes[4].name: "r-long": is the name of policy_classes[1] too`},
		{"family alone", func(_ *Classes, p *Profile) { p.Classes[4].Family = "x" }, `policy_classes[4].policy_family: "x": is set without cache_bucket; a class has both, or neither and is reached by its name alone`},
		{"bucket alone", func(_ *Classes, p *Profile) { p.Classes[4].Bucket = "short" }, `policy_classes[4].cache_bucket: "short": is set without policy_family; a class has both, or neither and is reached by its name alone`},
		{"order", func(_ *Classes, p *Profile) { p.Classes[4].Order = "lifo" }, `policy_classes[4].queue_policy: "lifo": must be one of fcfs, wspt, lcfs`},
		{"quantum", func(_ *Classes, p *Profile) { p.Classes[4].Quantum = 0 }, `policy_classes[4].quantum: "0": must be from 1 to 1099511627776 tokens`},
		{"quantum below", func(_ *Classes, p *Profile) { p.Classes[4].Quantum = -1 }, `policy_classes[4].quantum: "-1": must be from 1 to 1099511627776 tokens`},
		{"prefill tokens", func(_ *Classes, p *Profile) { p.Classes[4].PrefillBusyTokens = ptr(int64(-1)) }, `policy_classes[4].prefill_busy_threshold: "-1": must be from 0 to 1099511627776 tokens`},
		{"prefill part", func(_ *Classes, p *Profile) { p.Classes[4].PrefillBusyFrac = ptr(-0.1) }, `policy_classes[4].prefill_busy_threshold_frac: "-0.1": must be from 0 to 1099511627776`},
		{"prefill part infinite", func(_ *Classes, p *Profile) { p.Classes[4].PrefillBusyFrac = ptr(math.Inf(1)) }, `policy_classes[4].prefill_busy_threshold_frac: "+Inf": must be from 0 to 1099511627776`},
		{"decode part 0", func(_ *Classes, p *Profile) { p.Classes[4].DecodeBusyFrac = ptr(0.0) }, `policy_classes[4].decode_busy_threshold_frac: "0": must be more than 0 and at most 1`},
		{"decode part over 1", func(_ *Classes, p *Profile) { p.Classes[4].DecodeBusyFrac = ptr(1.01) }, `policy_classes[4].decode_busy_threshold_frac: "1.01": must be more than 0 and at most 1`},
		{"decode part no number", func(_ *Classes, p *Profile) { p.Classes[4].DecodeBusyFrac = ptr(math.NaN()) }, `policy_classes[4].decode_busy_threshold_frac: "NaN": must be more than 0 and at most 1`},
		{"worker ratio", func(_ *Classes, p *Profile) { p.Classes[4].BusyWorkerRatio = ptr(0.0) }, `policy_classes[4].busy_worker_ratio: "0": must be more than 0 and at most 1`},
		{"requests", func(_ *Classes, p *Profile) { p.Classes[4].RequestLimitPerWorker = ptr(-1.0) }, `policy_classes[4].request_queue_limit_per_worker: "-1": must be from 0 to 1099511627776`},
		{"raw tokens", func(_ *Classes, p *Profile) { p.Classes[4].RawTokenLimitPerWorker = ptr(-1.0) }, `policy_classes[4].raw_isl_token_queue_limit_per_worker: "-1": must be from 0 to 1099511627776`},
		{"cached tokens", func(_ *Classes, p *Profile) { p.Classes[4].CachedTokenLimitPerWorker = ptr(-1.0) }, `policy_classes[4].cached_token_queue_limit_per_worker: "-1": must be from 0 to 1099511627776`},
		{"wait", func(_ *Classes, p *Profile) { p.Classes[4].MaxWait = -time.Second }, `policy_classes[4].max_wait_secs: "-1": must not be negative`},
		{"first bucket", func(_ *Classes, p *Profile) { p.Buckets[0].MinTokens = 1 }, `uncached_isl_buckets[0].min_tokens: "1": must be 0: the first bucket begins there`},
		{"buckets not rising", func(_ *Classes, p *Profile) { p.Buckets[1].MinTokens = 0 }, `uncached_isl_buckets[1].min_tokens: "0": must be more than that of the bucket before, which is 0`},
		{"bucket twice", func(_ *Classes, p *Profile) { p.Buckets = append(p.Buckets, Bucket{5000, "long"}) }, `uncached_isl_buckets[2].bucket: "long": is the name of uncached_isl_buckets[1] too`},
		{"unknown bucket", func(_ *Classes, p *Profile) { p.Classes[1].Bucket = "lnog" }, `policy_classes[1].cache_bucket: "lnog": is no bucket of uncached_isl_buckets`},
		{"cell twice", func(_ *Classes, p *Profile) { p.Classes[4].Family, p.Classes[4].Bucket = "premium", "long" }, `policy_classes[4]: "probe": is for policy_family "premium" and cache_bucket "long" like policy_classes[3]`},
		{"cell missing", func(_ *Classes, p *Profile) { p.Classes = p.Classes[:3] }, `policy_classes: policy_family "premium" has no class for cache_bucket "long"; every family needs one for each bucket`},
		{"in a model", func(c *Classes, p *Profile) {
			q := *p
			q.DefaultFamily = "nobody"
			c.Models = map[string]*Profile{"org/m": &q, "none": nil}
		}, `models.none: has no profile
models.org/m.default_policy_family: "nobody": is the policy_family of no class`},
	} {
		c := validClasses()
		tc.spoil(c, c.Root)
		got := ""
		if err := c.Validate(); err != nil {
			got = err.Error()
		}
		if got != tc.want {
			t.Errorf("%s:\n got %s\nwant %s", tc.name, got, tc.want)
		}
	}
}

func TestClassErrorsAreBounded(t *testing.T) {
	p := &Profile{DefaultFamily: "d", Buckets: []Bucket{{0, "b"}}}
	for range MaxClasses {
		p.Classes = append(p.Classes, Class{Name: "?", Quantum: -1})
	}
	err := (&Classes{Root: p}).Validate().(ClassErrors)
	if len(err) != maxClassErrors {
		t.Errorf("%d errors", len(err))
	}
	p.Classes = append(p.Classes, Class{})
	if got := (&Classes{Root: p}).Validate().Error(); got != "policy_classes: has more than 1024 classes" {
		t.Error(got)
	}
}

func TestRejectThresholdsValidate(t *testing.T) {
	if err := (RejectThresholds{ActiveDecodeBlocks: ptr(1.0), ActivePrefillTokens: ptr(int64(0)), ActivePrefillTokensFrac: ptr(16.0)}).Validate(); err != nil {
		t.Error(err)
	}
	got := RejectThresholds{ActiveDecodeBlocks: ptr(1.1), ActivePrefillTokens: ptr(int64(-1)), ActivePrefillTokensFrac: ptr(-1.0)}.Validate().Error()
	want := `active_decode_blocks_threshold: "1.1": must be from 0 to 1
active_prefill_tokens_threshold: "-1": must be from 0 to 1099511627776 tokens
active_prefill_tokens_threshold_frac: "-1": must not be negative`
	if got != want {
		t.Errorf("\n got %s\nwant %s", got, want)
	}
}
