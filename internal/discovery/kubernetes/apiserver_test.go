package kubernetes

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
)

// apiServer behaves like an API server in what a client sees of lists and watches, and can
// be told to fail.
type apiServer struct {
	// script may answer a request in place of the server; it returns false to leave it to
	// the server.
	script func(w http.ResponseWriter, r *http.Request) bool
	token  string // that is asked for; "" for none

	mu       sync.Mutex
	version  int
	objects  map[string]map[string]stored // by resource, then namespace/name
	watches  map[*apiWatch]bool
	silent   bool // watches get nothing
	lists    int
	watched  int
	requests []string
}

// stored is an object as the server stores it.
type stored struct {
	version int
	labels  map[string]string
	json    json.RawMessage
}

type apiWatch struct {
	resource  string
	namespace string
	selector  labels.Selector
	had       map[string]bool // objects that the watch has shown
	events    chan string
	end       chan struct{}
}

func newAPIServer() *apiServer {
	return &apiServer{objects: map[string]map[string]stored{"pods": {}, "endpointslices": {}}, watches: map[*apiWatch]bool{}}
}

// put stores an object and tells the watches.
func (s *apiServer) put(resource string, meta *metav1.ObjectMeta, o any) {
	s.store(resource, meta, o, true)
}

func (s *apiServer) store(resource string, meta *metav1.ObjectMeta, o any, tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	meta.ResourceVersion = strconv.Itoa(s.version)
	b, err := json.Marshal(o)
	if err != nil {
		panic(err)
	}
	key := meta.Namespace + "/" + meta.Name
	old, known := s.objects[resource][key]
	s.objects[resource][key] = stored{s.version, maps.Clone(meta.Labels), b}
	if !tell {
		return
	}
	typ := "ADDED"
	if known {
		typ = "MODIFIED"
	}
	for w := range s.watches {
		switch {
		case w.resource != resource || w.namespace != "" && w.namespace != meta.Namespace:
		case w.selector.Matches(labels.Set(meta.Labels)):
			t := typ
			if !w.had[key] {
				t = "ADDED"
			}
			w.had[key] = true
			s.tell(w, t, b)
		case w.had[key]:
			delete(w.had, key)
			s.tell(w, "DELETED", old.json) // it left the selection, and is shown as it was
		}
	}
}

// remove drops an object; tell is whether the watches hear of it.
func (s *apiServer) remove(resource, key string, tell bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o, ok := s.objects[resource][key]
	if !ok {
		panic("no " + key)
	}
	delete(s.objects[resource], key)
	for w := range s.watches {
		if tell && w.resource == resource && w.had[key] {
			delete(w.had, key)
			s.tell(w, "DELETED", o.json)
		}
	}
}

func (s *apiServer) tell(w *apiWatch, typ string, o json.RawMessage) {
	if !s.silent {
		w.events <- fmt.Sprintf(`{"type":%q,"object":%s}`+"\n", typ, o)
	}
}

// say sends one line to all watches.
func (s *apiServer) say(line string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		w.events <- line + "\n"
	}
}

// cut ends all watches.
func (s *apiServer) cut() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for w := range s.watches {
		delete(s.watches, w)
		close(w.end)
	}
}

func (s *apiServer) setSilent(on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.silent = on
}

func (s *apiServer) setScript(f func(w http.ResponseWriter, r *http.Request) bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.script = f
}

func (s *apiServer) setToken(token string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.token = token
}

// counts returns how many lists were begun and watches opened.
func (s *apiServer) counts() (lists, watches int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.lists, s.watched
}

func status(w http.ResponseWriter, code int, reason, message string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	fmt.Fprint(w, statusJSON(code, reason, message))
}

func statusJSON(code int, reason, message string) string {
	return fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":%q,"reason":%q,"code":%d}`, message, reason, code)
}

// ServeHTTP implements http.Handler.
func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	script, token := s.script, s.token
	q := r.URL.Query()
	watching := q.Get("watch") == "true"
	if !watching && q.Get("continue") == "" {
		s.lists++
	}
	s.requests = append(s.requests, r.URL.RequestURI())
	s.mu.Unlock()
	if token != "" && r.Header.Get("Authorization") != "Bearer "+token {
		status(w, 401, "Unauthorized", "Unauthorized")
		return
	}
	if script != nil && script(w, r) {
		return
	}
	path := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, "/api/v1/"), "/apis/discovery.k8s.io/v1/")
	namespace := ""
	if rest, ok := strings.CutPrefix(path, "namespaces/"); ok {
		namespace, path, _ = strings.Cut(rest, "/")
	}
	if s.objects[path] == nil {
		status(w, 404, "NotFound", "the server could not find the requested resource")
		return
	}
	selector, err := labels.Parse(q.Get("labelSelector"))
	if err != nil {
		status(w, 400, "BadRequest", err.Error())
		return
	}
	if watching {
		s.serveWatch(w, r, path, namespace, selector)
		return
	}
	s.serveList(w, r, path, namespace, selector)
}

// serveList serves pages: the continue token is the number of objects that were served.
func (s *apiServer) serveList(w http.ResponseWriter, r *http.Request, resource, namespace string, selector labels.Selector) {
	s.mu.Lock()
	defer s.mu.Unlock()
	limit, _ := strconv.Atoi(r.URL.Query().Get("limit"))
	from, _ := strconv.Atoi(r.URL.Query().Get("continue"))
	items := []json.RawMessage{}
	for _, key := range slices.Sorted(maps.Keys(s.objects[resource])) {
		o := s.objects[resource][key]
		if (namespace == "" || strings.HasPrefix(key, namespace+"/")) && selector.Matches(labels.Set(o.labels)) {
			items = append(items, o.json)
		}
	}
	next := ""
	items = items[min(from, len(items)):]
	if limit > 0 && len(items) > limit {
		items, next = items[:limit], strconv.Itoa(from+limit)
	}
	kind, version := "PodList", "v1"
	if resource == "endpointslices" {
		kind, version = "EndpointSliceList", "discovery.k8s.io/v1"
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{
		"kind": kind, "apiVersion": version, "items": items,
		"metadata": map[string]any{"resourceVersion": strconv.Itoa(s.version), "continue": next},
	})
}

func (s *apiServer) serveWatch(w http.ResponseWriter, r *http.Request, resource, namespace string, selector labels.Selector) {
	s.mu.Lock()
	watch := &apiWatch{resource: resource, namespace: namespace, selector: selector, had: map[string]bool{}, events: make(chan string, 10_000), end: make(chan struct{})}
	since, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	for key, o := range s.objects[resource] {
		if (namespace == "" || strings.HasPrefix(key, namespace+"/")) && selector.Matches(labels.Set(o.labels)) {
			watch.had[key] = true
			if o.version > since {
				s.tell(watch, "ADDED", o.json)
			}
		}
	}
	s.watched++
	s.watches[watch] = true
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, watch)
	}()
	seconds, _ := strconv.Atoi(r.URL.Query().Get("timeoutSeconds"))
	timeout := time.NewTimer(time.Duration(seconds) * time.Second)
	defer timeout.Stop()
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case <-watch.end:
			return
		case <-timeout.C:
			s.mu.Lock()
			silent := s.silent
			s.mu.Unlock()
			if !silent {
				return
			}
		case line := <-watch.events:
			if _, err := io.WriteString(w, line); err != nil {
				return
			}
			w.(http.Flusher).Flush()
		}
	}
}

// inProcess carries requests to a handler without a network, so that time can be virtual.
type inProcess struct{ handler http.Handler }

// RoundTrip implements http.RoundTripper.
func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	body, out := io.Pipe()
	w := &pipeWriter{header: http.Header{}, out: out, begun: make(chan struct{})}
	go func() {
		defer func() {
			if e := recover(); e != nil && e != http.ErrAbortHandler {
				panic(e)
			} else if e != nil {
				w.WriteHeader(200)
				_ = out.CloseWithError(io.ErrUnexpectedEOF)
			}
		}()
		p.handler.ServeHTTP(w, r)
		w.WriteHeader(200)
		_ = out.Close()
	}()
	select {
	case <-w.begun:
	case <-r.Context().Done():
		_ = body.Close()
		return nil, r.Context().Err()
	}
	stop := make(chan struct{})
	go func() {
		select {
		case <-r.Context().Done():
			_ = body.CloseWithError(r.Context().Err())
		case <-stop:
		}
	}()
	return &http.Response{StatusCode: w.code, Header: w.header, Body: &pipeBody{ReadCloser: body, stop: stop}, Request: r, ProtoMajor: 1, ProtoMinor: 1, ContentLength: -1}, nil
}

// CloseIdleConnections is looked for by client-go.
func (inProcess) CloseIdleConnections() {}

type pipeBody struct {
	io.ReadCloser
	once sync.Once
	stop chan struct{}
}

func (b *pipeBody) Close() error {
	b.once.Do(func() { close(b.stop) })
	return b.ReadCloser.Close()
}

type pipeWriter struct {
	header http.Header
	code   int
	out    *io.PipeWriter
	once   sync.Once
	begun  chan struct{}
}

func (w *pipeWriter) Header() http.Header { return w.header }

func (w *pipeWriter) WriteHeader(code int) {
	w.once.Do(func() {
		w.code, w.header = code, w.header.Clone()
		close(w.begun)
	})
}

func (w *pipeWriter) Write(b []byte) (int, error) {
	w.WriteHeader(200)
	return w.out.Write(b)
}

func (w *pipeWriter) Flush() { w.WriteHeader(200) }

// pod is a pod that runs and is ready.
func pod(name, ip string, change ...func(*corev1.Pod)) *corev1.Pod {
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{Kind: "Pod", APIVersion: "v1"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "llm", Name: name, UID: types.UID("uid-" + name),
			Labels: map[string]string{"app": "engine"}, CreationTimestamp: metav1.NewTime(time.Unix(1_700_000_000, 0)),
		},
		Status: corev1.PodStatus{
			Phase: corev1.PodRunning, PodIP: ip,
			Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}},
		},
	}
	for _, c := range change {
		c(p)
	}
	return p
}

func (s *apiServer) putPod(p *corev1.Pod) { s.put("pods", &p.ObjectMeta, p) }

func notReady(p *corev1.Pod) {
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, Reason: "ContainersNotReady", Message: "containers with unready status: [engine]"}}
}

func label(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) { p.Labels[key] = value }
}

func annotation(key, value string) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		if p.Annotations == nil {
			p.Annotations = map[string]string{}
		}
		p.Annotations[key] = value
	}
}

func uid(u string) func(*corev1.Pod) { return func(p *corev1.Pod) { p.UID = types.UID(u) } }

func port(name string, n int32) func(*corev1.Pod) {
	return func(p *corev1.Pod) {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: "c-" + name, Ports: []corev1.ContainerPort{{Name: name, ContainerPort: n}}})
	}
}
