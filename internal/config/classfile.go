package config

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"go.yaml.in/yaml/v4"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/suggest"
)

// policyConfigPath is the setting that names the class file.
const policyConfigPath = "admission.router_policy_config"

// classProfile is the profile of a class file, as it is written. The names and
// rules are those of the policy classes of Dynamo's router, and max_wait_secs.
type classProfile struct {
	DefaultPolicyFamily string       `yaml:"default_policy_family" flag:"-" null:"true" help:"Family of requests that name neither a family nor a class without one."`
	UncachedISLBuckets  []classRange `yaml:"uncached_isl_buckets" flag:"-" null:"true" help:"Ranges of the uncached tokens of a prompt. A request belongs to the one with the highest min_tokens that is not more than it has."`
	PolicyClasses       []classSpec  `yaml:"policy_classes" flag:"-" null:"true" help:"The classes."`
}

type classRange struct {
	MinTokens int64  `yaml:"min_tokens" required:"true" help:"Smallest number of uncached tokens in the range: 0 in the first, and larger in each further one."`
	Bucket    string `yaml:"bucket" required:"true" help:"Its name."`
}

// classSpec is an admission.Class as it is written. Ranges are checked there.
type classSpec struct {
	Name          string          `yaml:"name" required:"true" help:"Name of the class, unique in its profile: letters, digits, underscore, dot and dash."`
	PolicyFamily  string          `yaml:"policy_family" null:"true" help:"Family of the class. Set it together with cache_bucket; without both, requests reach the class by its name only."`
	CacheBucket   string          `yaml:"cache_bucket" null:"true" help:"Its bucket, one of uncached_isl_buckets. Each family has exactly one class for each bucket."`
	QueuePolicy   admission.Order `yaml:"queue_policy" null:"true" choices:"fcfs|wspt|lcfs" default:"fcfs" help:"Order of the waiting requests, after strict priority and the class's deadline: fcfs by arrival, wspt the least work first, lcfs (with allow_lcfs) the latest first."`
	Quantum       int64           `yaml:"quantum" required:"true" help:"Share of the class when several classes wait: the number of uncached tokens that it may start in each round."`
	PrefillTokens *int64          `yaml:"prefill_busy_threshold" null:"true" help:"A prefill worker is busy for the class while it has more than this number of tokens in prefill. The class waits while all prefill workers are busy."`
	PrefillFrac   *float64        `yaml:"prefill_busy_threshold_frac" null:"true" exponents:"true" help:"The same as a fraction of the worker's max_num_batched_tokens. It may exceed 1. If both are set, a worker is busy when it exceeds either."`
	DecodeFrac    *float64        `yaml:"decode_busy_threshold_frac" null:"true" exponents:"true" help:"A decode worker has room for a request of the class while its booked KV blocks, with those of the request, are at most this fraction of its total, above 0 and up to 1. The class waits before prefill while no decode worker has room."`
	WorkerRatio   *float64        `yaml:"busy_worker_ratio" null:"true" exponents:"true" defaultdoc:"all of them" help:"The class waits while at least this fraction of the prefill workers is busy, above 0 and up to 1."`
	Requests      *float64        `yaml:"request_queue_limit_per_worker" null:"true" exponents:"true" help:"Maximum number of waiting requests of the class, per worker. 0: no request waits."`
	RawTokens     *float64        `yaml:"raw_isl_token_queue_limit_per_worker" null:"true" exponents:"true" help:"Maximum number of prompt tokens of the waiting requests of the class, per worker."`
	CachedTokens  *float64        `yaml:"cached_token_queue_limit_per_worker" null:"true" exponents:"true" help:"Maximum number of cached prompt tokens of the waiting requests of the class, per worker."`
	MaxWait       *time.Duration  `yaml:"max_wait_secs" null:"true" unit:"secs" range:"0.001:" help:"Maximum waiting time of a request of the class."`
}

var profileSchema = sync.OnceValue(func() *group { return buildGroup(reflect.TypeFor[classProfile](), "", nil) })

// classKeys are the keys of a class file, in their order.
var classKeys = []string{"router", "default_policy_family", "uncached_isl_buckets", "policy_classes", "models", "worker_selection", "request_classifier"}

// ignoredRouterKeys are settings of Dynamo's router that mean nothing here.
var ignoredRouterKeys = []string{
	"host_cache_hit_weight", "disk_cache_hit_weight", "use_kv_events", "router_replica_sync",
	"router_track_active_blocks", "router_track_output_blocks", "router_assume_kv_reuse", "router_track_prefill_tokens",
	"router_tracking_hash", "router_tracking_key_file", "router_tracking_key_id", "router_prefill_load_model",
	"router_ttl_secs", "router_approximate_cache_policy", "router_event_threads", "use_remote_indexer", "serve_indexer",
	"enable_session_prefix_index", "shared_cache_type", "router_predicted_ttl_secs",
}

// instead names the settings here that do what an ignored key does there.
var instead = map[string]string{
	"router_track_output_blocks": "admission.track_output_blocks",
	"worker_selection":           "routing.policy",
}

// classReader reads the keys of a class file, from one or from the admission
// group.
type classReader struct {
	y *yamlReader
	// prefix of paths: "admission." in that group, else "".
	prefix string
	root   *classProfile
	models map[string]*classProfile
	seen   bool // any key
	first  Origin
}

// key reads one key; false: it is none of a class file.
func (r *classReader) key(key string, at Origin, value *yaml.Node, valueAt Origin) bool {
	if !slices.Contains(classKeys, key) {
		return false
	}
	if !r.seen {
		r.seen, r.first = true, at
	}
	path := r.prefix + key
	r.y.lines[path] = at
	switch key {
	case "models":
		r.readModels(value, path)
	case "router":
		r.ignored(value, path, ignoredRouterKeys)
	case "worker_selection":
		r.plugin(value, at, path, []string{"aggregated", "prefill", "decode", "encode"}, "instances")
	case "request_classifier":
		r.plugin(value, at, path, []string{"type"}, "parameters")
	default:
		if r.root == nil {
			r.root = &classProfile{}
		}
		r.y.option(value, profileSchema().option(key), reflect.ValueOf(r.root).Elem(), r.prefix, valueAt)
	}
	return true
}

func (r *classReader) readModels(n *yaml.Node, path string) {
	if isNull(n) {
		return
	}
	seen := r.y.mappingOf(n, path, func(key string, at Origin, value *yaml.Node, _ Origin) {
		modelPath := path + "." + key
		r.y.lines[modelPath] = at
		switch err := checkModelName(key); {
		case err != nil:
			r.y.fail(join(path, key), at.String(), key, "%v", err)
			return
		case len(r.models) == admission.MaxModels:
			r.y.fail(path, at.String(), "", "has more than %d models", admission.MaxModels)
			return
		case len(r.models) > admission.MaxModels:
			return
		}
		if r.models == nil {
			r.models = map[string]*classProfile{}
		}
		p := &classProfile{}
		r.models[key] = p
		r.y.mapping(value, profileSchema(), reflect.ValueOf(p).Elem(), modelPath+".", modelPath)
	})
	if seen != nil && len(seen) == 0 {
		delete(r.y.lines, path)
	}
}

func checkModelName(s string) error {
	if s == "" || len(s) > 512 {
		return errors.New("must be a model's name, of 1 to 512 bytes")
	}
	for i := range len(s) {
		if s[i] < ' ' || s[i] == 0x7f {
			return errors.New("must be a model's name, without control characters")
		}
	}
	return nil
}

// ignored reads a group whose keys mean nothing here: one warning for each that
// is known, an error for any other.
func (r *classReader) ignored(n *yaml.Node, path string, known []string) {
	if isNull(n) {
		return
	}
	r.y.mappingOf(n, path, func(key string, at Origin, value *yaml.Node, _ Origin) {
		if !slices.Contains(known, key) {
			r.y.fail(join(path, key), at.String(), "", "%s", unknownAmong(key, known))
			return
		}
		r.y.skip(value)
		r.ignore(path+"."+key, key, at)
	})
}

func (r *classReader) ignore(path, key string, at Origin) {
	if s := instead[key]; s != "" {
		r.y.warn(path, at.String(), "ignored: it has no meaning here; %s is the setting", s)
	} else {
		r.y.warn(path, at.String(), "ignored: it has no meaning here")
	}
}

// plugin reads one of the two groups that choose linked code in Dynamo's router.
func (r *classReader) plugin(n *yaml.Node, at Origin, path string, texts []string, rest string) {
	if isNull(n) {
		return
	}
	seen := r.y.mappingOf(n, path, func(key string, at Origin, value *yaml.Node, _ Origin) {
		switch {
		case key == rest && rest == "instances":
			r.instances(value, path+"."+key, at)
		case key == rest:
			r.y.skip(value)
		case slices.Contains(texts, key):
			if value.Kind != yaml.ScalarNode {
				r.y.fail(path+"."+key, at.String(), "", "must be a single value, not %s", kindName(value))
			}
		default:
			r.y.fail(join(path, key), at.String(), "", "%s", unknownAmong(key, append(texts, rest)))
		}
	})
	if seen != nil {
		key := path[strings.LastIndexByte(path, '.')+1:]
		r.ignore(path, key, at)
	}
}

func (r *classReader) instances(n *yaml.Node, path string, at Origin) {
	if n.Kind != yaml.SequenceNode {
		r.y.fail(path, at.String(), shown(n), "must be a list, not %s", kindName(n))
		return
	}
	keys := []string{"name", "type", "parameters"}
	for i, item := range n.Content {
		itemPath := fmt.Sprintf("%s[%d]", path, i)
		if item = r.y.follow(item); item == nil {
			return
		}
		r.y.mappingOf(item, itemPath, func(key string, at Origin, value *yaml.Node, _ Origin) {
			if !slices.Contains(keys, key) {
				r.y.fail(join(itemPath, key), at.String(), "", "%s", unknownAmong(key, keys))
				return
			}
			r.y.skip(value)
		})
	}
}

func unknownAmong(key string, known []string) string {
	if n := suggest.Nearest(strings.ReplaceAll(key, "-", "_"), known); n != "" {
		return fmt.Sprintf("unknown key; did you mean %s?", n)
	}
	return "unknown key"
}

// hasClasses reports whether any profile was given, right or wrong.
func (r *classReader) hasClasses() bool { return r != nil && (r.root != nil || len(r.models) > 0) }

// classes are those that were read, nil without any.
func (r *classReader) classes() *admission.Classes {
	if !r.hasClasses() {
		return nil
	}
	c := &admission.Classes{}
	if r.root != nil {
		c.Root = r.root.profile()
	}
	for name, p := range r.models {
		if c.Models == nil {
			c.Models = map[string]*admission.Profile{}
		}
		c.Models[name] = p.profile()
	}
	return c
}

func (p *classProfile) profile() *admission.Profile {
	out := &admission.Profile{DefaultFamily: p.DefaultPolicyFamily}
	for _, b := range p.UncachedISLBuckets {
		out.Buckets = append(out.Buckets, admission.Bucket{MinTokens: b.MinTokens, Name: b.Bucket})
	}
	for _, c := range p.PolicyClasses {
		class := admission.Class{
			Name: c.Name, Family: c.PolicyFamily, Bucket: c.CacheBucket, Order: c.QueuePolicy, Quantum: c.Quantum,
			PrefillBusyTokens: c.PrefillTokens, PrefillBusyFrac: c.PrefillFrac, DecodeBusyFrac: c.DecodeFrac,
			BusyWorkerRatio: c.WorkerRatio, RequestLimitPerWorker: c.Requests,
			RawTokenLimitPerWorker: c.RawTokens, CachedTokenLimitPerWorker: c.CachedTokens,
		}
		if c.MaxWait != nil {
			class.MaxWait = *c.MaxWait
		}
		out.Classes = append(out.Classes, class)
	}
	return out
}

// writtenProfile is the inverse of profile.
func writtenProfile(p *admission.Profile) *classProfile {
	out := &classProfile{DefaultPolicyFamily: p.DefaultFamily}
	for _, b := range p.Buckets {
		out.UncachedISLBuckets = append(out.UncachedISLBuckets, classRange{b.MinTokens, b.Name})
	}
	for _, c := range p.Classes {
		spec := classSpec{
			Name: c.Name, PolicyFamily: c.Family, CacheBucket: c.Bucket, QueuePolicy: c.Order, Quantum: c.Quantum,
			PrefillTokens: c.PrefillBusyTokens, PrefillFrac: c.PrefillBusyFrac, DecodeFrac: c.DecodeBusyFrac,
			WorkerRatio: c.BusyWorkerRatio, Requests: c.RequestLimitPerWorker,
			RawTokens: c.RawTokenLimitPerWorker, CachedTokens: c.CachedTokenLimitPerWorker,
		}
		if c.MaxWait > 0 {
			spec.MaxWait = &c.MaxWait
		}
		out.PolicyClasses = append(out.PolicyClasses, spec)
	}
	return out
}

// resolveClasses makes Config.Classes from the class file, the admission group
// or the queue threshold. The file's path is one setting with the contents of
// the group: the stronger source wins, and both from one contradict each other.
func (l *loader) resolveClasses() {
	from := l.inline
	if file := l.cfg.Admission.RouterPolicyConfig; file != "" {
		if l.inline.hasClasses() && l.cfg.origins[policyConfigPath].Kind == FromFile {
			l.fail(policyConfigPath, l.source(policyConfigPath), file, "the group has classes of its own, first in line %d; set one of them", l.inline.first.Line)
		}
		from = l.readClassFile(file)
	}
	if from.hasClasses() {
		l.cfg.Classes, l.cfg.classes = from.classes(), from.y.lines
		l.checkClasses(from)
	}
	l.checkQueueThreshold(from)
}

// readClassFile reads the class file, nil if it cannot be read.
func (l *loader) readClassFile(name string) *classReader {
	n := l.document(name, "the class file")
	if n == nil {
		return nil
	}
	y := &yamlReader{loader: l, name: name, lines: map[string]Origin{}}
	r := &classReader{y: y}
	y.mappingOf(n, "", func(key string, at Origin, value *yaml.Node, valueAt Origin) {
		if r.key(key, at, value, valueAt) {
			return
		}
		if key == "<<" {
			y.fail(join("", key), at.String(), "", "merge keys are not supported")
			return
		}
		r.seen = true
		y.fail(join("", key), at.String(), "", "%s", unknownAmong(key, classKeys))
	})
	if !r.seen && n.Kind == yaml.MappingNode {
		l.fail("", name, "", "holds nothing; a class file has at least one of %s", strings.Join(classKeys, ", "))
	}
	return r
}

// checkClasses finds the places of what is wrong with the classes.
func (l *loader) checkClasses(r *classReader) {
	l.checkOrders(r)
	var es admission.ClassErrors
	if err := l.cfg.Classes.Validate(); err == nil {
		return
	} else if !errors.As(err, &es) {
		l.fail("", r.y.name, "", "%v", err)
		return
	}
	told := maps.Clone(l.bad)
	for _, e := range es {
		path := r.prefix + e.Path
		if !toldOf(told, path) {
			l.fail(path, r.at(path).String(), e.Value, "%s", e.Message)
		}
	}
}

// fromCells are places whose mistakes make cells of the matrix wrong, ofCells
// those where that shows.
var (
	fromCells = regexp.MustCompile(`(\.policy_family|\.cache_bucket|\.bucket|^policy_classes(\[[0-9]+\])?|^uncached_isl_buckets(\[[0-9]+\])?)$`)
	ofCells   = regexp.MustCompile(`^(.*\.)?(policy_classes|default_policy_family|policy_classes\[[0-9]+\](\.cache_bucket)?)$`)
)

// toldOf reports whether a mistake of the path, or of what it is a part of, or that
// it follows from, is told already.
func toldOf(told map[string]bool, path string) bool {
	cells := ofCells.FindStringSubmatch(path)
	for bad := range told {
		if bad == path || strings.HasPrefix(path, bad+".") || strings.HasPrefix(path, bad+"[") {
			return true
		}
		if cells == nil {
			continue
		}
		if rest, same := strings.CutPrefix(bad, cells[1]); same && fromCells.MatchString(rest) {
			return true
		}
	}
	return false
}

// at is the place of a path, or of the nearest thing around it.
func (r *classReader) at(path string) Origin {
	for p := path; p != ""; {
		if at, ok := r.y.lines[p]; ok {
			return at
		}
		i := strings.LastIndexAny(p, ".[")
		if i < 0 {
			break
		}
		p = p[:i]
	}
	return Origin{Kind: FromFile, Name: r.y.name, Line: r.first.Line}
}

// checkOrders refuses lcfs, as the public schema does, and warns of what has no
// effect.
func (l *loader) checkOrders(r *classReader) {
	each := func(p *admission.Profile, prefix string) {
		for i, c := range p.Classes {
			path := fmt.Sprintf("%spolicy_classes[%d].", prefix, i)
			if c.Order == admission.LCFS && !l.cfg.Admission.AllowLCFS {
				at := r.at(path + "queue_policy")
				by := at
				if r.prefix == "" { // a class file has no such key
					by = l.cfg.origins[policyConfigPath]
				}
				l.fail(path+"queue_policy", at.String(), string(c.Order), "needs %s", l.on("admission.allow_lcfs", by))
			}
			if c.BusyWorkerRatio != nil && c.PrefillBusyTokens == nil && c.PrefillBusyFrac == nil {
				l.warn(path+"busy_worker_ratio", r.at(path+"busy_worker_ratio").String(), "has no effect without prefill_busy_threshold or prefill_busy_threshold_frac: no worker is busy for the class")
			}
		}
	}
	if p := l.cfg.Classes.Root; p != nil {
		each(p, r.prefix)
	}
	for _, name := range sortedKeys(l.cfg.Classes.Models) {
		each(l.cfg.Classes.Models[name], r.prefix+"models."+name+".")
	}
}

// checkQueueThreshold makes the one synthetic class, or refuses its settings
// beside others.
func (l *loader) checkQueueThreshold(classes *classReader) {
	const threshold, order = "admission.router_queue_threshold", "admission.router_queue_policy"
	a := l.cfg.Admission
	if classes.hasClasses() {
		for _, path := range []string{threshold, order} {
			if l.isSet(path) {
				l.blame(path, "makes a class, and there are classes already (%s); each of them has its own thresholds and queue_policy", classes.first)
			}
		}
		return
	}
	if l.good(order) && a.RouterQueuePolicy == admission.LCFS && !a.AllowLCFS {
		l.blame(order, "needs %s", l.on("admission.allow_lcfs", l.cfg.origins[order]))
	}
	if a.RouterQueueThreshold != nil || a.RouterQueuePolicy != admission.FCFS && a.Enabled() {
		l.cfg.Classes = admission.SyntheticClasses(a.RouterQueueThreshold, a.RouterQueuePolicy)
	} else if a.RouterQueuePolicy != admission.FCFS && l.good(order, threshold) {
		from := l.cfg.origins[order]
		l.warn(order, from.String(), "has no effect without %s or %s: nothing waits", l.named(threshold, from), l.named("admission.prefill_max_inflight_requests_per_worker", from))
	}
}
