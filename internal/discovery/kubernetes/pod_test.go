package kubernetes

import (
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/fleet"
)

// whole are the settings of a fleet whose workers run whole requests, split those of one
// with prefill and decode apart.
func whole(c *config.Config) {
	c.Kubernetes.Enabled, c.Kubernetes.Selector, c.Kubernetes.Port = true, "app=engine", "8000"
}

func split(c *config.Config) {
	c.Fleet.PDDisaggregation = true
	c.Kubernetes.Enabled, c.Kubernetes.Port = true, "8000"
	c.Kubernetes.PrefillSelector, c.Kubernetes.DecodeSelector = "app=engine,role=prefill", "app=engine,role in (decode,both)"
}

func rulesOf(t testing.TB, changes ...func(*config.Config)) *rules {
	t.Helper()
	r, err := newRules(configtest.New(func(c *config.Config) {
		for _, change := range changes {
			change(c)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// describe is a worker in one line.
func describe(w *fleet.Declared) string {
	s := fmt.Sprintf("%s %s", w.Type, w.URL)
	if w.BootstrapPort != config.BootstrapAuto {
		s += " bootstrap=" + w.BootstrapPort.String()
	}
	if w.KVConnector != "" {
		s += " connector=" + w.KVConnector
	}
	if w.ModelID != "" {
		s += " model=" + w.ModelID
	}
	if w.Leaving {
		s += " leaving"
		if !w.LeaveBy.IsZero() {
			s += fmt.Sprintf(" by %d", w.LeaveBy.Unix())
		}
	}
	if w.NotReady != "" {
		s += " not ready: " + w.NotReady
	}
	return s
}

func TestAPodBecomesItsWorkers(t *testing.T) {
	modelLabel := func(c *config.Config) { c.Kubernetes.ModelIDFrom = "label:model" }
	for _, tc := range []struct {
		name     string
		settings []func(*config.Config)
		change   []func(*corev1.Pod)
		want     []string
		warning  string
	}{
		{name: "ready", want: []string{"regular http://10.0.0.1:8000"}},
		{name: "gRPC", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.Scheme = "grpc" }}, want: []string{"regular grpc://10.0.0.1:8000"}},
		{name: "no selector matches", change: []func(*corev1.Pod){label("app", "other")}},
		{name: "not ready stays", change: []func(*corev1.Pod){notReady},
			want: []string{"regular http://10.0.0.1:8000 not ready: the pod is not ready: containers with unready status: [engine]"}},
		{name: "no condition yet", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Conditions = nil }},
			want: []string{"regular http://10.0.0.1:8000 not ready: the pod is not ready: it has no condition Ready yet"}},
		{name: "a node that does not answer", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionUnknown }},
			want: []string{"regular http://10.0.0.1:8000 not ready: the pod is not ready: its condition Ready is Unknown"}},
		{name: "being deleted", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_800_000_000, 0)} }},
			want: []string{"regular http://10.0.0.1:8000 leaving by 1800000000"}},
		{name: "being deleted and not ready", change: []func(*corev1.Pod){notReady, func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1_800_000_000, 0)} }},
			want: []string{"regular http://10.0.0.1:8000 leaving by 1800000000"}},
		{name: "a phase that says nothing", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodUnknown }}, want: []string{"regular http://10.0.0.1:8000"}},
		{name: "pending", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodPending }}},
		{name: "failed, its address still there", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodFailed }}},
		{name: "succeeded", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.Phase = corev1.PodSucceeded }}},
		{name: "evicted, its address taken", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.PodIP = "" }}},
		{name: "IPv6", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.PodIP = "fd00::1" }}, want: []string{"regular http://[fd00::1]:8000"}},
		{name: "an address that is none", change: []func(*corev1.Pod){func(p *corev1.Pod) { p.Status.PodIP = "evil.example/x" }},
			warning: `pod llm/p: its address "evil.example/x" is no address of one host; it is left out`},
		{name: "leader of a group", change: []func(*corev1.Pod){label(leaderIndexLabel, "0")}, want: []string{"regular http://10.0.0.1:8000"}},
		{name: "another of a group", change: []func(*corev1.Pod){label(leaderIndexLabel, "1")}},

		// Ports.
		{name: "port by name", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.Port = "http" }},
			change: []func(*corev1.Pod){port("metrics", 9000), port("http", 30000)}, want: []string{"regular http://10.0.0.1:30000"}},
		{name: "port by a name that is not there", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.Port = "http" }},
			change: []func(*corev1.Pod){port("metrics", 9000)}, warning: "pod llm/p: it has no port named http (--service-discovery-port); it is left out"},
		{name: "port by label", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.Port = "label:x/port" }},
			change: []func(*corev1.Pod){label("x/port", "8001")}, want: []string{"regular http://10.0.0.1:8001"}},
		{name: "port by a label that is not there", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.Port = "label:x/port" }},
			warning: `pod llm/p: label:x/port (--service-discovery-port): "" is no port from 1 to 65535; it is left out`},
		{name: "ports by annotation", change: []func(*corev1.Pod){annotation(WorkerPortsAnnotation, "30000, 30001")},
			want: []string{"regular http://10.0.0.1:30000", "regular http://10.0.0.1:30001"}},
		{name: "annotation that is no port", change: []func(*corev1.Pod){annotation(WorkerPortsAnnotation, "30000,x")},
			want:    []string{"regular http://10.0.0.1:8000"},
			warning: `pod llm/p: annotation smg.ai/worker-ports: "x" is no port from 1 to 65535; port 8000 is used`},
		{name: "port twice", change: []func(*corev1.Pod){annotation(WorkerPortsAnnotation, "1,1")}, want: []string{"regular http://10.0.0.1:8000"},
			warning: `pod llm/p: annotation smg.ai/worker-ports: port 1 is named twice; port 8000 is used`},

		// Roles.
		{name: "prefill", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "prefill")}, want: []string{"prefill http://10.0.0.1:8000"}},
		{name: "decode", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "both")}, want: []string{"decode http://10.0.0.1:8000"}},
		{name: "neither role", settings: []func(*config.Config){split}},
		{name: "both roles", settings: []func(*config.Config){split, func(c *config.Config) { c.Kubernetes.DecodeSelector = "app=engine" }},
			change: []func(*corev1.Pod){label("role", "prefill")}, want: []string{"prefill http://10.0.0.1:8000"},
			warning: "pod llm/p: --decode-selector matches it too; it is a prefill worker"},
		{name: "the mode decides which selectors count", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.PrefillSelector = "app" }}, want: []string{"regular http://10.0.0.1:8000"}},

		// Bootstrap ports.
		{name: "bootstrap port", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "prefill"), annotation("sglang.ai/bootstrap-port", "8998")},
			want: []string{"prefill http://10.0.0.1:8000 bootstrap=8998"}},
		{name: "no bootstrap port", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "prefill"), annotation("sglang.ai/bootstrap-port", "none")},
			want: []string{"prefill http://10.0.0.1:8000 bootstrap=none"}},
		{name: "bootstrap port of decode", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "decode"), annotation("sglang.ai/bootstrap-port", "8998")},
			want: []string{"decode http://10.0.0.1:8000"}},
		{name: "bootstrap port for all", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "prefill"), annotation(WorkerPortsAnnotation, "1,2"), annotation("sglang.ai/bootstrap-port", "8998")},
			want: []string{"prefill http://10.0.0.1:1 bootstrap=8998", "prefill http://10.0.0.1:2 bootstrap=8998"}},
		{name: "bootstrap port for each", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "prefill"), annotation(WorkerPortsAnnotation, "1,2"), annotation("sglang.ai/bootstrap-port", "8998,8999")},
			want: []string{"prefill http://10.0.0.1:1 bootstrap=8998", "prefill http://10.0.0.1:2 bootstrap=8999"}},
		{name: "too few bootstrap ports", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "prefill"), annotation(WorkerPortsAnnotation, "1,2,3"), annotation("sglang.ai/bootstrap-port", "8998,8999")},
			want:    []string{"prefill http://10.0.0.1:1", "prefill http://10.0.0.1:2", "prefill http://10.0.0.1:3"},
			warning: "pod llm/p: annotation sglang.ai/bootstrap-port: it lists 2 ports for 3 engines; the engine is asked for its bootstrap port"},
		{name: "no bootstrap port at all", settings: []func(*config.Config){split}, change: []func(*corev1.Pod){label("role", "prefill"), annotation("sglang.ai/bootstrap-port", "70000")},
			want:    []string{"prefill http://10.0.0.1:8000"},
			warning: `pod llm/p: annotation sglang.ai/bootstrap-port: "70000" must be a port from 1 to 65535, or none; the engine is asked for its bootstrap port`},
		{name: "bootstrap port in another annotation", settings: []func(*config.Config){split, func(c *config.Config) { c.Kubernetes.BootstrapPortAnnotation = "x/y" }},
			change: []func(*corev1.Pod){label("role", "prefill"), annotation("x/y", "1"), annotation("sglang.ai/bootstrap-port", "2")}, want: []string{"prefill http://10.0.0.1:8000 bootstrap=1"}},

		// Connectors and models.
		{name: "connector by its class", change: []func(*corev1.Pod){annotation("smg.ai/kv-connector", "NixlConnector")}, want: []string{"regular http://10.0.0.1:8000 connector=nixl"}},
		{name: "connector that is not known", change: []func(*corev1.Pod){annotation("smg.ai/kv-connector", "Teleport")}, want: []string{"regular http://10.0.0.1:8000"},
			warning: `pod llm/p: annotation smg.ai/kv-connector: "Teleport" is no KV connector that is known here; the engine is asked`},
		{name: "model by label", settings: []func(*config.Config){modelLabel}, change: []func(*corev1.Pod){label("model", "llama")}, want: []string{"regular http://10.0.0.1:8000 model=llama"}},
		{name: "model by label that is not there", settings: []func(*config.Config){modelLabel, func(c *config.Config) { c.Fleet.ModelID = "m" }}, want: []string{"regular http://10.0.0.1:8000 model=m"}},
		{name: "model by annotation", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.ModelIDFrom = "annotation:x/model" }}, change: []func(*corev1.Pod){annotation("x/model", "org/llama")}, want: []string{"regular http://10.0.0.1:8000 model=org/llama"}},
		{name: "model by namespace", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.ModelIDFrom = "namespace" }}, want: []string{"regular http://10.0.0.1:8000 model=llm"}},
		{name: "a model that cannot be one", settings: []func(*config.Config){func(c *config.Config) { c.Kubernetes.ModelIDFrom = "annotation:x/model" }}, change: []func(*corev1.Pod){annotation("x/model", "a\nb")}, want: []string{"regular http://10.0.0.1:8000"},
			warning: "pod llm/p: its model (annotation:x/model) is too long or has a control character; it is not used"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := rulesOf(t, append([]func(*config.Config){whole}, tc.settings...)...)
			p := pod("p", "10.0.0.1", tc.change...)
			o := r.translate(p)
			if o == nil {
				if tc.want != nil || tc.warning != "" {
					t.Fatal("no selector matches it")
				}
				return
			}
			var got []string
			for i := range o.workers {
				got = append(got, describe(&o.workers[i]))
			}
			if strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
				t.Errorf("workers\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(tc.want, "\n"))
			}
			if strings.Join(o.warnings, "\n") != tc.warning {
				t.Errorf("warnings %q, want %q", o.warnings, tc.warning)
			}
			if !o.equal(r.translate(p.DeepCopy())) {
				t.Error("the same pod means something else")
			}
		})
	}
}

func TestAWorkerTellsWhichPodItIs(t *testing.T) {
	r := rulesOf(t, split, func(c *config.Config) { c.Fleet.PairLabel = "rev" })
	o := r.translate(pod("p", "10.0.0.1", label("role", "prefill"), label("rev", "7"), label("other", "x"),
		annotation(WorkerPortsAnnotation, "1,2"), annotation("smg.ai/kv-engine-id", "a,b")))
	w := o.workers[1]
	want := map[string]string{"smg.ai/pod-name": "p", "smg.ai/pod-uid": "uid-p", "rev": "7"}
	if fmt.Sprint(w.Labels) != fmt.Sprint(want) {
		t.Errorf("labels %v, want %v", w.Labels, want)
	}
	if w.Identity != "uid-p/b" || w.Origin != "pod llm/p" {
		t.Errorf("identity %q, origin %q", w.Identity, w.Origin)
	}
	for list, problem := range map[string]string{"a": "it lists 1 ids for 2 engines", "a,a": `"a" is named twice`, "a,": `"" is no id`} {
		o = r.translate(pod("p", "10.0.0.1", label("role", "prefill"), annotation(WorkerPortsAnnotation, "1,2"), annotation("smg.ai/kv-engine-id", list)))
		if o.workers[1].Identity != "uid-p" || len(o.warnings) != 1 || !strings.Contains(o.warnings[0], problem) {
			t.Errorf("%q: identity %q, warnings %q", list, o.workers[1].Identity, o.warnings)
		}
	}
}

func TestTwoPodsWithOneAddress(t *testing.T) {
	r := rulesOf(t, whole)
	now := time.Unix(1_800_000_000, 0)
	later := func(p *corev1.Pod) { p.CreationTimestamp = metav1.NewTime(p.CreationTimestamp.Add(time.Hour)) }
	leaving := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now.Add(20 * time.Second)} }
	overdue := func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: now.Add(-11 * time.Second)} }
	for _, tc := range []struct {
		a, b     func(*corev1.Pod)
		want     string // the pod whose worker it is; "" for no worker
		warnings int
	}{
		{later, notReady, "a", 1},
		{notReady, later, "b", 1},
		{leaving, notReady, "b", 0},
		{notReady, leaving, "a", 0},
		{leaving, overdue, "a", 0},
		{overdue, overdue, "", 0},
	} {
		got := read(map[string]*object{"llm/a": r.translate(pod("a", "10.0.0.1", tc.a)), "llm/b": r.translate(pod("b", "10.0.0.1", tc.b))}, nil, nil, now)
		name := ""
		if len(got.Workers) == 1 {
			name = got.Workers[0].Labels[PodNameLabel]
		}
		if len(got.Workers) > 1 || name != tc.want || len(got.Warnings) != tc.warnings {
			t.Errorf("%d workers, that of %q, want %q; warnings %q", len(got.Workers), name, tc.want, got.Warnings)
		}
	}
}

func TestWarningsAreBounded(t *testing.T) {
	r := rulesOf(t, whole)
	all := map[string]*object{}
	for i := range 100 {
		name := fmt.Sprintf("p%03d", i)
		all["llm/"+name] = r.translate(pod(name, fmt.Sprintf("10.0.1.%d", i), annotation(WorkerPortsAnnotation, "x")))
	}
	got := read(all, nil, nil, time.Now())
	if len(got.Workers) != 100 || len(got.Warnings) != 20 || got.Warnings[19] != "and 81 more warnings" {
		t.Errorf("%d workers, warnings %q", len(got.Workers), got.Warnings)
	}
}

// Whatever stands in the annotations of a pod, its workers have ports, and what is wrong
// is said.
func FuzzAnnotations(f *testing.F) {
	f.Add("30000,30001", "8998", "a,b", "NixlConnector", "org/model")
	f.Add("", "none", "", "", "")
	f.Add("0", "-1", ",", "auto", "\x00")
	r := rulesOf(f, split, func(c *config.Config) { c.Kubernetes.ModelIDFrom = "annotation:m" })
	f.Fuzz(func(t *testing.T, ports, bootstrap, ids, connector, model string) {
		o := r.translate(pod("p", "10.0.0.1", label("role", "prefill"), annotation(WorkerPortsAnnotation, ports), annotation("sglang.ai/bootstrap-port", bootstrap),
			annotation("smg.ai/kv-engine-id", ids), annotation("smg.ai/kv-connector", connector), annotation("m", model)))
		if len(o.workers) == 0 || len(o.workers) > maxPorts || len(o.warnings) > maxObjectWarnings {
			t.Fatalf("%d workers, %d warnings", len(o.workers), len(o.warnings))
		}
		parsed, err := parsePorts(ports)
		if (err == nil) != (len(o.warnings) == 0 || !strings.Contains(o.warnings[0], WorkerPortsAnnotation)) || err == nil && len(parsed) != len(o.workers) {
			t.Errorf("%q: %v, %d workers, warnings %q", ports, err, len(o.workers), o.warnings)
		}
		seen := map[string]bool{}
		for _, w := range o.workers {
			if seen[w.URL] || w.BootstrapPort < config.BootstrapNone || w.BootstrapPort > 65535 {
				t.Errorf("worker %s, bootstrap port %d", w.URL, w.BootstrapPort)
			}
			seen[w.URL] = true
		}
	})
}

func BenchmarkReading5000Pods(b *testing.B) {
	r := rulesOf(b, split, func(c *config.Config) { c.Fleet.PairLabel = "rev" })
	all := map[string]*object{}
	for i := range 5000 {
		name := fmt.Sprintf("p%04d", i)
		all["llm/"+name] = r.translate(pod(name, fmt.Sprintf("10.0.%d.%d", i/250, i%250), label("role", "prefill"), label("rev", "1")))
	}
	b.ReportAllocs()
	for b.Loop() {
		if got := read(all, nil, nil, time.Now()); len(got.Workers) != 5000 {
			b.Fatal(len(got.Workers))
		}
	}
}

func BenchmarkTranslatePod(b *testing.B) {
	r := rulesOf(b, split, func(c *config.Config) { c.Fleet.PairLabel = "rev" })
	p := pod("p", "10.0.0.1", label("role", "prefill"), label("rev", "1"))
	b.ReportAllocs()
	for b.Loop() {
		r.translate(p)
	}
}
