package admission

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Order is how the waiters of a class are served, after strict priority and
// deadline.
type Order string

// The orders.
const (
	// FCFS serves by arrival, moved forward by a priority jump in seconds.
	FCFS Order = "fcfs"
	// WSPT serves the shortest work first: (1 + priority jump) over uncached
	// tokens.
	WSPT Order = "wspt"
	// LCFS serves the latest arrival first.
	LCFS Order = "lcfs"
)

// Class is one policy class as it is configured. A nil limit or threshold is
// none.
type Class struct {
	// Name is unique within a profile: letters, digits, '.', '_', '-'.
	Name string
	// Family and Bucket make the class one cell of the matrix of families and
	// buckets. Both are set, or neither: then only its name leads to it.
	Family, Bucket string
	// Order of its waiters. Empty: FCFS.
	Order Order
	// Quantum is its credit in each round between classes, in uncached tokens,
	// more than zero.
	Quantum int64

	// A prefill rank is busy for the class when its active prefill tokens are
	// more than PrefillBusyTokens, or more than PrefillBusyFrac of its
	// max_num_batched_tokens.
	PrefillBusyTokens *int64
	PrefillBusyFrac   *float64
	// A decode rank has room for a request of the class when its active and
	// pending KV blocks, with the request's, are at most this part of all its
	// blocks. In (0, 1].
	DecodeBusyFrac *float64
	// BusyWorkerRatio calls the prefill pool busy when so large a part of the
	// eligible ranks is busy, instead of all of them. In (0, 1].
	BusyWorkerRatio *float64

	// Limits of what may wait in the class, each times the number of registered
	// workers of the gating role: requests, prompt tokens, cached tokens. Zero
	// makes a class that never queues.
	RequestLimitPerWorker     *float64
	RawTokenLimitPerWorker    *float64
	CachedTokenLimitPerWorker *float64
	// MaxWait is the longest wait in the class. Zero: none of its own.
	MaxWait time.Duration
}

// Bucket is a range of uncached prompt tokens: from MinTokens to the next
// bucket's.
type Bucket struct {
	MinTokens int64
	Name      string
}

// Profile is the classes of a model, or of all models that have none of their
// own.
type Profile struct {
	// DefaultFamily is the family of requests that name no class.
	DefaultFamily string
	// Buckets rise strictly, the first at 0.
	Buckets []Bucket
	Classes []Class
}

// Classes is a class configuration. It is immutable once handed to the gate.
type Classes struct {
	// Root serves models without a profile of their own; nil: they have the one
	// synthetic class "default".
	Root *Profile
	// Models replace Root whole, by the name of the base model.
	Models map[string]*Profile
}

// RejectThresholds are the router-wide limits beyond which a rank is not chosen
// and, when every candidate is, a request is refused at once. Nil is none.
type RejectThresholds struct {
	// ActiveDecodeBlocks is a part of a decode rank's KV blocks, 0–1.
	ActiveDecodeBlocks *float64
	// ActivePrefillTokens is in tokens on a prefill rank, ActivePrefillTokensFrac
	// a part of its max_num_batched_tokens.
	ActivePrefillTokens     *int64
	ActivePrefillTokensFrac *float64
}

// Bounds of a class configuration. Class names are values of metric labels, so
// their number is bounded like them.
const (
	MaxClasses      = 1024 // of a profile
	MaxBuckets      = 64   // of a profile
	MaxModels       = 1024 // with a profile of their own
	MaxClassNameLen = 128  // of classes, families and buckets, in bytes
	maxClassTokens  = 1 << 40
	maxClassErrors  = 100
)

// ClassError is one thing wrong with a class configuration.
type ClassError struct {
	// Path is the place in the terms of a class file, as in
	// "policy_classes[0].quantum" or "models.m.policy_classes[0].quantum".
	Path string
	// Value is what stands there, "" where there is nothing to show.
	Value   string
	Message string
}

func (e *ClassError) Error() string {
	if e.Value == "" {
		return e.Path + ": " + e.Message
	}
	return fmt.Sprintf("%s: %q: %s", e.Path, e.Value, e.Message)
}

// ClassErrors is what is wrong with a class configuration, in its order, 100 of
// them at most.
type ClassErrors []*ClassError

func (es ClassErrors) Error() string {
	lines := make([]string, len(es))
	for i, e := range es {
		lines[i] = e.Error()
	}
	return strings.Join(lines, "\n")
}

// Validate tells everything that is wrong with the configuration, as
// [ClassErrors], or nil. The gate takes only a valid one.
func (c *Classes) Validate() error {
	v := classChecker{}
	if c.Root != nil {
		v.profile(c.Root)
	}
	if len(c.Models) > MaxModels {
		v.fail("models", "", "has more than %d models", MaxModels)
	} else {
		for _, name := range slices.Sorted(maps.Keys(c.Models)) {
			v.prefix = "models." + name + "."
			if p := c.Models[name]; p == nil {
				v.prefix = ""
				v.fail("models."+name, "", "has no profile")
			} else {
				v.profile(p)
			}
		}
	}
	if len(v.errs) == 0 {
		return nil
	}
	return v.errs
}

type classChecker struct {
	prefix string
	errs   ClassErrors
}

func (v *classChecker) fail(path, value, format string, args ...any) {
	if len(v.errs) < maxClassErrors {
		v.errs = append(v.errs, &ClassError{Path: v.prefix + path, Value: value, Message: fmt.Sprintf(format, args...)})
	}
}

// togetherNote says what a profile is, to those who gave a part of one.
const togetherNote = "default_policy_family, uncached_isl_buckets and policy_classes go together, or none of them"

func (v *classChecker) profile(p *Profile) {
	if p.DefaultFamily == "" {
		v.fail("default_policy_family", "", "is missing: %s", togetherNote)
	} else {
		v.identifier("default_policy_family", p.DefaultFamily)
	}
	switch n := len(p.Buckets); {
	case n == 0:
		v.fail("uncached_isl_buckets", "", "is missing or empty: %s", togetherNote)
	case n > MaxBuckets:
		v.fail("uncached_isl_buckets", "", "has more than %d buckets", MaxBuckets)
		return
	}
	switch n := len(p.Classes); {
	case n == 0:
		v.fail("policy_classes", "", "is missing or empty: %s", togetherNote)
		return
	case n > MaxClasses:
		v.fail("policy_classes", "", "has more than %d classes", MaxClasses)
		return
	}
	v.buckets(p.Buckets)
	names := map[string]int{}
	for i := range p.Classes {
		c, path := &p.Classes[i], fmt.Sprintf("policy_classes[%d]", i)
		if v.identifier(path+".name", c.Name) {
			if j, twice := names[c.Name]; twice {
				v.fail(path+".name", c.Name, "is the name of policy_classes[%d] too", j)
			} else {
				names[c.Name] = i
			}
		}
		v.class(path, c)
	}
	if len(p.Buckets) > 0 {
		v.matrix(p)
	}
}

func (v *classChecker) buckets(buckets []Bucket) {
	names := map[string]int{}
	for i, b := range buckets {
		path := fmt.Sprintf("uncached_isl_buckets[%d]", i)
		if v.identifier(path+".bucket", b.Name) {
			if j, twice := names[b.Name]; twice {
				v.fail(path+".bucket", b.Name, "is the name of uncached_isl_buckets[%d] too", j)
			} else {
				names[b.Name] = i
			}
		}
		value := strconv.FormatInt(b.MinTokens, 10)
		switch {
		case i == 0 && b.MinTokens != 0:
			v.fail(path+".min_tokens", value, "must be 0: the first bucket begins there")
		case i > 0 && b.MinTokens <= buckets[i-1].MinTokens:
			v.fail(path+".min_tokens", value, "must be more than that of the bucket before, which is %d", buckets[i-1].MinTokens)
		case b.MinTokens > maxClassTokens:
			v.fail(path+".min_tokens", value, "must not be more than %d", int64(maxClassTokens))
		}
	}
}

func (v *classChecker) class(path string, c *Class) {
	switch {
	case c.Family != "" && c.Bucket == "":
		v.fail(path+".policy_family", c.Family, "is set without cache_bucket; a class has both, or neither and is reached by its name alone")
	case c.Family == "" && c.Bucket != "":
		v.fail(path+".cache_bucket", c.Bucket, "is set without policy_family; a class has both, or neither and is reached by its name alone")
	}
	if c.Family != "" {
		v.identifier(path+".policy_family", c.Family)
	}
	switch c.Order {
	case "", FCFS, WSPT, LCFS:
	default:
		v.fail(path+".queue_policy", string(c.Order), "must be one of fcfs, wspt, lcfs")
	}
	if c.Quantum <= 0 || c.Quantum > maxClassTokens {
		v.fail(path+".quantum", strconv.FormatInt(c.Quantum, 10), "must be from 1 to %d tokens", int64(maxClassTokens))
	}
	if t := c.PrefillBusyTokens; t != nil && (*t < 0 || *t > maxClassTokens) {
		v.fail(path+".prefill_busy_threshold", strconv.FormatInt(*t, 10), "must be from 0 to %d tokens", int64(maxClassTokens))
	}
	v.notNegative(path+".prefill_busy_threshold_frac", c.PrefillBusyFrac)
	v.part(path+".decode_busy_threshold_frac", c.DecodeBusyFrac)
	v.part(path+".busy_worker_ratio", c.BusyWorkerRatio)
	v.notNegative(path+".request_queue_limit_per_worker", c.RequestLimitPerWorker)
	v.notNegative(path+".raw_isl_token_queue_limit_per_worker", c.RawTokenLimitPerWorker)
	v.notNegative(path+".cached_token_queue_limit_per_worker", c.CachedTokenLimitPerWorker)
	if c.MaxWait < 0 {
		v.fail(path+".max_wait_secs", formatNumber(c.MaxWait.Seconds()), "must not be negative")
	}
}

// matrix checks that every family has one class for each bucket.
func (v *classChecker) matrix(p *Profile) {
	type cell struct{ family, bucket string }
	known := map[string]bool{}
	for _, b := range p.Buckets {
		known[b.Name] = true
	}
	first := map[cell]int{}
	var families []string
	doubtful := map[string]bool{} // families with a class whose bucket is wrong
	for i := range p.Classes {
		c, path := &p.Classes[i], fmt.Sprintf("policy_classes[%d]", i)
		if c.Family == "" {
			continue
		}
		if !slices.Contains(families, c.Family) {
			families = append(families, c.Family)
		}
		if !known[c.Bucket] {
			doubtful[c.Family] = true
			if c.Bucket != "" {
				v.fail(path+".cache_bucket", c.Bucket, "is no bucket of uncached_isl_buckets")
			}
			continue
		}
		if j, twice := first[cell{c.Family, c.Bucket}]; twice {
			v.fail(path, c.Name, "is for policy_family %q and cache_bucket %q like policy_classes[%d]", c.Family, c.Bucket, j)
		} else {
			first[cell{c.Family, c.Bucket}] = i
		}
	}
	for _, f := range families {
		if doubtful[f] {
			continue
		}
		var missing []string
		for _, b := range p.Buckets {
			if _, ok := first[cell{f, b.Name}]; !ok && b.Name != "" {
				missing = append(missing, strconv.Quote(b.Name))
			}
		}
		if len(missing) > 0 {
			v.fail("policy_classes", "", "policy_family %q has no class for cache_bucket %s; every family needs one for each bucket", f, strings.Join(missing, ", "))
		}
	}
	if p.DefaultFamily != "" && !slices.Contains(families, p.DefaultFamily) {
		v.fail("default_policy_family", p.DefaultFamily, "is the policy_family of no class")
	}
}

// identifier refuses names that cannot stand in a header or a metric.
func (v *classChecker) identifier(path, s string) bool {
	switch {
	case s == "":
		v.fail(path, "", "is missing")
		return false
	case len(s) > MaxClassNameLen:
		v.fail(path, s, "is longer than %d bytes", MaxClassNameLen)
		return false
	}
	if !ValidClassName(s) {
		v.fail(path, s, "must be of letters, digits, '_', '.' and '-'")
		return false
	}
	return true
}

// ValidClassName reports whether a class, a family or a bucket may have the name.
func ValidClassName(s string) bool {
	if s == "" || len(s) > MaxClassNameLen {
		return false
	}
	for i := range len(s) {
		switch c := s[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '_', c == '.', c == '-':
		default:
			return false
		}
	}
	return true
}

func (v *classChecker) notNegative(path string, f *float64) {
	if f != nil && !(*f >= 0 && *f <= maxClassTokens) {
		v.fail(path, formatNumber(*f), "must be from 0 to %d", int64(maxClassTokens))
	}
}

// part checks a number in (0, 1].
func (v *classChecker) part(path string, f *float64) {
	if f != nil && !(*f > 0 && *f <= 1) {
		hint := ""
		if *f >= 10 && *f <= 100 {
			hint = "; write " + formatNumber(*f/100) + " for " + formatNumber(*f) + " %"
		}
		v.fail(path, formatNumber(*f), "must be more than 0 and at most 1%s", hint)
	}
}

func formatNumber(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }

// Validate tells what is wrong with the thresholds, as [ClassErrors], or nil.
func (t RejectThresholds) Validate() error {
	v := classChecker{}
	if f := t.ActiveDecodeBlocks; f != nil && !(*f >= 0 && *f <= 1) {
		v.fail("active_decode_blocks_threshold", formatNumber(*f), "must be from 0 to 1")
	}
	if n := t.ActivePrefillTokens; n != nil && (*n < 0 || *n > maxClassTokens) {
		v.fail("active_prefill_tokens_threshold", strconv.FormatInt(*n, 10), "must be from 0 to %d tokens", int64(maxClassTokens))
	}
	if f := t.ActivePrefillTokensFrac; f != nil && !(*f >= 0 && !math.IsInf(*f, 0)) {
		v.fail("active_prefill_tokens_threshold_frac", formatNumber(*f), "must not be negative")
	}
	if len(v.errs) == 0 {
		return nil
	}
	return v.errs
}

// SyntheticClasses is what --router-queue-threshold and --router-queue-policy
// stand for: one class named "default", busy at the part frac of a prefill rank's
// max_num_batched_tokens, or never with nil.
func SyntheticClasses(frac *float64, order Order) *Classes {
	return &Classes{Root: &Profile{
		DefaultFamily: "default",
		Buckets:       []Bucket{{Name: "all"}},
		Classes:       []Class{{Name: "default", Family: "default", Bucket: "all", Order: order, Quantum: 1, PrefillBusyFrac: frac}},
	}}
}
