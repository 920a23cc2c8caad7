package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/miekg/dns"
)

// declarer is a source of workers as the test plays it.
type declarer interface {
	// flags name the source to the router.
	flags(of []*engine) []string
	// declare is called after what of said changed. r is nil before the router runs.
	declare(r *router, of []*engine, changed *engine)
	// fail makes the source unusable, or usable again.
	fail(on bool)
}

// said is what the source of an engine says of it.
type said struct {
	listed bool
	model  string // "": what the engine serves
	uid    int    // of the process, where the source has such a thing
}

// entry is an engine as it stands in the configuration, in the file, and in requests.
func (e *engine) entry() map[string]any {
	m := map[string]any{"url": e.url, "worker_type": e.role, "labels": map[string]string{"generation": e.generation}}
	if e.bootstrap != 0 {
		m["bootstrap_port"] = e.bootstrap
	}
	if e.said.model != "" {
		m["model_id"] = e.said.model
	}
	if e.ca != "" {
		m["tls"] = map[string]string{"ca_file": e.ca}
		m["http2"] = e.http2
	}
	return m
}

func entries(of []*engine) []any {
	list := []any{}
	for _, e := range of {
		if e.said.listed {
			list = append(list, e.entry())
		}
	}
	return list
}

// replaceFile puts a JSON document, which is YAML too, in the place of a file.
func replaceFile(t testing.TB, name string, v any) {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name+".new", b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(name+".new", name); err != nil {
		t.Fatal(err)
	}
}

// byConfiguration is the list of workers of the configuration, which is reloaded.
type byConfiguration struct {
	t     testing.TB
	file  string
	pairs bool
}

func (s *byConfiguration) flags(of []*engine) []string {
	s.declare(nil, of, nil)
	return []string{"--config", s.file}
}

func (s *byConfiguration) declare(r *router, of []*engine, _ *engine) {
	replaceFile(s.t, s.file, map[string]any{"fleet": map[string]any{"pd_disaggregation": s.pairs}, "workers": entries(of)})
	if r != nil {
		if status, body := r.change("POST", "/admission/reload", ""); status/100 != 2 {
			s.t.Errorf("the configuration cannot be reloaded: %d %s", status, clip(body))
		}
	}
}

func (s *byConfiguration) fail(bool) {}

// byFile is the file with a list of workers.
type byFile struct {
	t    testing.TB
	file string
	last any
	bad  bool
}

func (s *byFile) flags(of []*engine) []string {
	s.declare(nil, of, nil)
	return []string{"--discovery-file", s.file, "--discovery-check-interval-secs", "0.3"}
}

func (s *byFile) declare(_ *router, of []*engine, _ *engine) {
	s.last = map[string]any{"workers": entries(of)}
	s.write()
}

func (s *byFile) write() {
	if s.bad {
		replaceFile(s.t, s.file, "no list")
		return
	}
	replaceFile(s.t, s.file, s.last)
}

func (s *byFile) fail(on bool) { s.bad = on; s.write() }

// byRequests registers, changes and removes workers by requests to the router.
type byRequests struct{ t testing.TB }

func (s *byRequests) flags([]*engine) []string { return nil }

func (s *byRequests) declare(r *router, _ []*engine, e *engine) {
	if r == nil || e == nil {
		return
	}
	path := "/workers/" + url.PathEscape(e.url)
	if !e.said.listed {
		if status, body := r.change("DELETE", path+"?timeout=2", ""); status != http.StatusAccepted && status != http.StatusNotFound {
			s.t.Errorf("DELETE %s: %d %s", path, status, clip(body))
		}
		return
	}
	b, err := json.Marshal(e.entry())
	if err != nil {
		s.t.Fatal(err)
	}
	if status, body := r.change("PUT", path, string(b)); status/100 != 2 {
		s.t.Errorf("PUT %s: %d %s", path, status, clip(body))
	}
}

func (s *byRequests) fail(bool) {}

// byDNS is a name server with one name for each engine, since engines of one machine have
// ports that differ.
type byDNS struct {
	t      testing.TB
	server *dns.Server
	addr   string

	mu sync.Mutex
	// guarded by mu
	listed map[string]bool
	bad    bool
}

func newDNS(t testing.TB) *byDNS {
	t.Helper()
	pc, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	s := &byDNS{t: t, addr: pc.LocalAddr().String(), listed: make(map[string]bool)}
	started := make(chan struct{})
	s.server = &dns.Server{PacketConn: pc, Handler: dns.HandlerFunc(s.answer), NotifyStartedFunc: func() { close(started) }}
	over := make(chan error, 1)
	go func() { over <- s.server.ActivateAndServe() }()
	<-started
	t.Cleanup(func() {
		_ = s.server.Shutdown() // its end is what counts
		<-over
	})
	return s
}

func (s *byDNS) answer(w dns.ResponseWriter, q *dns.Msg) {
	r := new(dns.Msg).SetReply(q)
	s.mu.Lock()
	listed := s.listed[q.Question[0].Name]
	switch {
	case s.bad:
		r.Rcode = dns.RcodeServerFailure
	case !listed:
		r.Rcode = dns.RcodeNameError
		r.Ns = []dns.RR{&dns.SOA{Hdr: dns.RR_Header{Name: "engines.test.", Rrtype: dns.TypeSOA, Class: dns.ClassINET, Ttl: 1}, Ns: "ns.engines.test.", Mbox: "x.engines.test.", Minttl: 1}}
	case q.Question[0].Qtype == dns.TypeA:
		r.Answer = []dns.RR{&dns.A{Hdr: dns.RR_Header{Name: q.Question[0].Name, Rrtype: dns.TypeA, Class: dns.ClassINET, Ttl: 1}, A: net.IPv4(127, 0, 0, 1)}}
	}
	s.mu.Unlock()
	_ = w.WriteMsg(r) // the router asks again
}

func nameInDNS(e *engine) string { return strings.ReplaceAll(e.name, "/", ".") + ".engines.test." }

func (s *byDNS) flags(of []*engine) []string {
	out := []string{"--discovery-dns-server", s.addr, "--discovery-dns-min-interval-secs", "0.3"}
	for _, e := range of {
		s.declare(nil, nil, e)
		name := fmt.Sprintf("%s:%s,worker_type=%s,labels.generation=%s", nameInDNS(e), port(e.url), e.role, e.generation)
		if strings.HasPrefix(e.url, "grpc:") {
			name += ",scheme=grpc"
		}
		if e.bootstrap != 0 {
			name += fmt.Sprintf(",bootstrap_port=%d", e.bootstrap)
		}
		out = append(out, "--discovery-dns-names", name)
	}
	return out
}

func (s *byDNS) declare(_ *router, _ []*engine, e *engine) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed[nameInDNS(e)] = e.said.listed
}

func (s *byDNS) fail(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = on
}

func port(engine string) string {
	_, address, _ := strings.Cut(engine, "://")
	_, port, _ := strings.Cut(address, ":")
	return port
}

// byKubernetes is an API server with a pod for each engine.
type byKubernetes struct {
	t      testing.TB
	config string
	form   chaosForm

	mu sync.Mutex
	// guarded by mu
	version int
	pods    map[string]map[string]any
	events  []string      // since the first
	more    chan struct{} // closed and replaced at the next event
	bad     bool
}

func newKubernetes(t testing.TB, form chaosForm) *byKubernetes {
	t.Helper()
	s := &byKubernetes{t: t, form: form, config: filepath.Join(t.TempDir(), "kubeconfig"), pods: make(map[string]map[string]any), more: make(chan struct{})}
	server := httptest.NewServer(s)
	t.Cleanup(func() {
		s.fail(true) // ends the watches
		server.Close()
	})
	replaceFile(t, s.config, map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]string{"cluster": "k", "user": "u"}}},
		"clusters": []any{map[string]any{"name": "k", "cluster": map[string]string{"server": server.URL}}},
		"users":    []any{map[string]any{"name": "u", "user": map[string]string{}}}})
	return s
}

func (s *byKubernetes) flags(of []*engine) []string {
	for _, e := range of {
		s.declare(nil, nil, e)
	}
	out := []string{"--service-discovery", "--kubeconfig", s.config, "--service-discovery-namespace", "llm", "--model-id-from", "annotation:model"}
	if s.form.grpc {
		out = append(out, "--service-discovery-scheme", "grpc")
	}
	if s.form.pairs {
		return append(out, "--prefill-selector", "role=prefill", "--decode-selector", "role=decode")
	}
	return append(out, "--selector", "role=regular")
}

// declare has a pod that goes deleted with a grace period first, and then gone.
func (s *byKubernetes) declare(_ *router, _ []*engine, e *engine) {
	name := strings.ReplaceAll(e.name, "/", "-")
	meta := map[string]any{"namespace": "llm", "name": name, "uid": fmt.Sprint("uid-", name, "-", e.said.uid),
		"labels": map[string]string{"role": e.role, "generation": e.generation}}
	annotations := map[string]string{"smg.ai/worker-ports": port(e.url)}
	if e.bootstrap != 0 {
		annotations["sglang.ai/bootstrap-port"] = fmt.Sprint(e.bootstrap)
	}
	if e.said.model != "" {
		annotations["model"] = e.said.model
	}
	meta["annotations"] = annotations
	pod := map[string]any{"kind": "Pod", "apiVersion": "v1", "metadata": meta, "status": map[string]any{
		"phase": "Running", "podIP": "127.0.0.1", "conditions": []map[string]string{{"type": "Ready", "status": "True"}}}}
	s.mu.Lock()
	defer s.mu.Unlock()
	old, is := s.pods[name]
	switch {
	case !e.said.listed && is:
		meta["deletionTimestamp"] = time.Now().Add(2 * time.Second).UTC().Format(time.RFC3339)
		s.tellLocked("MODIFIED", name, pod)
	case is && old["metadata"].(map[string]any)["uid"] != meta["uid"]:
		s.tellLocked("DELETED", name, old)
		fallthrough
	case !is && e.said.listed:
		s.tellLocked("ADDED", name, pod)
	case is:
		s.tellLocked("MODIFIED", name, pod)
	}
}

func (s *byKubernetes) tellLocked(what, name string, pod map[string]any) {
	s.version++
	meta := pod["metadata"].(map[string]any)
	meta["resourceVersion"] = fmt.Sprint(s.version)
	if s.pods[name] = pod; what == "DELETED" {
		delete(s.pods, name)
	}
	b, err := json.Marshal(map[string]any{"type": what, "object": pod})
	if err != nil {
		panic(err)
	}
	s.events = append(s.events, string(b)+"\n")
	close(s.more)
	s.more = make(chan struct{})
}

// fail also ends the watches.
func (s *byKubernetes) fail(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.bad = on
	close(s.more)
	s.more = make(chan struct{})
}

// ServeHTTP serves lists of pods and watches.
func (s *byKubernetes) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bad || r.URL.Path != "/api/v1/namespaces/llm/pods" {
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	if r.URL.Query().Get("watch") == "" {
		var items []any
		for _, p := range s.pods {
			items = append(items, p)
		}
		_ = json.NewEncoder(w).Encode(map[string]any{"kind": "PodList", "apiVersion": "v1",
			"metadata": map[string]string{"resourceVersion": fmt.Sprint(s.version)}, "items": items}) // the router asks again
		return
	}
	var since int
	_, _ = fmt.Sscan(r.URL.Query().Get("resourceVersion"), &since) // none: from the start
	for !s.bad {
		for ; since < len(s.events); since++ {
			_, _ = fmt.Fprint(w, s.events[since]) // its context ends
		}
		w.(http.Flusher).Flush()
		more := s.more
		s.mu.Unlock()
		select {
		case <-more:
		case <-r.Context().Done():
		}
		s.mu.Lock()
		if r.Context().Err() != nil {
			return
		}
	}
}

// ofSource are the engines that a source declares.
func ofSource(all []*engine, name string) []*engine {
	return slices.DeleteFunc(slices.Clone(all), func(e *engine) bool { return e.source != name })
}
