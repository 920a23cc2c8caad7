package lease_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/sluice-router/sluice/internal/cluster/store"
	"github.com/sluice-router/sluice/internal/cluster/store/lease"
	"github.com/sluice-router/sluice/internal/cluster/store/storetest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const leases = "/apis/coordination.k8s.io/v1/namespaces/serving/leases"

// apiServer does with Leases of one namespace what an API server does. The tests on a real
// one are in test/kubernetes.
type apiServer struct {
	*httptest.Server

	mu sync.Mutex
	// script may answer a request in place of the server; it returns false to leave it to
	// the server.
	script  func(w http.ResponseWriter, r *http.Request) bool
	version int
	objects map[string]map[string]any
}

func newAPIServer(t *testing.T) *apiServer {
	t.Helper()
	s := &apiServer{objects: map[string]map[string]any{}}
	s.Server = httptest.NewUnstartedServer(s)
	s.Config.ErrorLog = log.New(io.Discard, "", 0)
	s.EnableHTTP2 = true
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

func answer(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	json.NewEncoder(w).Encode(v)
}

func status(w http.ResponseWriter, code int, reason, kind string) {
	answer(w, code, map[string]any{"kind": "Status", "code": code, "reason": reason, "message": reason + " it is", "details": map[string]any{"kind": kind}})
}

func (s *apiServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.script != nil && s.script(w, r) {
		return
	}
	name := strings.TrimPrefix(strings.TrimPrefix(r.URL.Path, leases), "/")
	if !strings.HasPrefix(r.URL.Path, leases) {
		status(w, http.StatusForbidden, "Forbidden", "leases")
		return
	}
	var o map[string]any
	body, err := io.ReadAll(r.Body)
	if err == nil && len(body) > 0 {
		err = json.Unmarshal(body, &o)
	}
	if err != nil {
		status(w, http.StatusBadRequest, "BadRequest", "leases")
		return
	}
	if r.Method == http.MethodPost {
		name = o["metadata"].(map[string]any)["name"].(string)
	}
	old := s.objects[name]
	switch {
	case r.Method == http.MethodPost && old != nil:
		status(w, http.StatusConflict, "AlreadyExists", "leases")
		return
	case r.Method != http.MethodPost && old == nil:
		status(w, http.StatusNotFound, "NotFound", "leases")
		return
	case r.Method == http.MethodPut && o["metadata"].(map[string]any)["resourceVersion"] != old["metadata"].(map[string]any)["resourceVersion"]:
		status(w, http.StatusConflict, "Conflict", "leases")
		return
	case r.Method == http.MethodGet:
		answer(w, http.StatusOK, old)
		return
	}
	s.put(name, o)
	answer(w, http.StatusOK, o)
}

func (s *apiServer) put(name string, o map[string]any) {
	s.version++
	o["metadata"].(map[string]any)["resourceVersion"] = strconv.Itoa(s.version)
	s.objects[name] = o
}

// change changes what the server has, and how it answers.
func (s *apiServer) change(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// open opens a store of the namespace at an address.
func (s *apiServer) open(t testing.TB, address, cluster, holder string) store.Store {
	t.Helper()
	u, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	if address == "" {
		address = u.Host
	}
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u, namespace: serving}}]
clusters: [{name: k, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: u, user: {token: secret}}]
`, address, ca)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	l, err := lease.New(lease.Options{Cluster: cluster, Kubeconfig: file, Holder: func([]byte) string { return holder }, UserAgent: "sluice/test"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLease(t *testing.T) {
	server := newAPIServer(t)
	u, _ := url.Parse(server.URL)
	storetest.Run(t, &storetest.Bed{
		Open: func(t testing.TB, address, cluster string) store.Store {
			return server.open(t, address, cluster, "router-0")
		},
		Address: u.Host, ReadsFirst: true,
	})
}

// A write whose answer is lost has happened, and is told as a conflict to nobody.
func TestLostAnswer(t *testing.T) {
	server := newAPIServer(t)
	s := server.open(t, "", "gate", "router-0")
	revision, err := s.Write(t.Context(), []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	server.change(func() {
		server.script = func(_ http.ResponseWriter, r *http.Request) bool {
			if r.Method != http.MethodPut {
				return false
			}
			var o map[string]any
			if err := json.NewDecoder(r.Body).Decode(&o); err != nil {
				t.Error(err)
			}
			server.put("gate", o)
			panic(http.ErrAbortHandler)
		}
	})
	if _, err := s.Write(t.Context(), []byte("two"), revision); !errors.Is(err, store.ErrUnavailable) {
		t.Fatalf("a write whose answer was lost: %v", err)
	}
	if r, err := s.Read(t.Context()); err != nil || string(r.Value) != "two" {
		t.Fatalf("read %+v, %v", r, err)
	}
}

// People see who holds the Lease, since when and how often that changed. What else is in
// the object stays.
func TestLeaseTellsPeople(t *testing.T) {
	server := newAPIServer(t)
	server.change(func() {
		server.put("gate", map[string]any{
			"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "later": true,
			"metadata": map[string]any{"name": "gate", "labels": map[string]any{"app": "sluice"}, "annotations": map[string]any{"note": "made by hand"}},
		})
	})
	first, second := server.open(t, "", "gate", "router-0"), server.open(t, "", "gate", "router-1")
	revision := ""
	for i, s := range []store.Store{first, first, second, second, first} {
		var err error
		if revision, err = s.Write(t.Context(), fmt.Append(nil, i), revision); err != nil {
			t.Fatal(err)
		}
	}
	server.change(func() {
		b, _ := json.Marshal(server.objects["gate"])
		var o struct {
			Later    bool
			Metadata struct{ Labels, Annotations map[string]string }
			Spec     struct {
				HolderIdentity, AcquireTime, RenewTime string
				LeaseTransitions                       int
			}
		}
		if err := json.Unmarshal(b, &o); err != nil {
			t.Fatal(err)
		}
		if o.Spec.HolderIdentity != "router-0" || o.Spec.LeaseTransitions != 2 || o.Spec.AcquireTime == "" || o.Spec.AcquireTime != o.Spec.RenewTime {
			t.Errorf("the Lease says %s", b)
		}
		if !o.Later || o.Metadata.Labels["app"] != "sluice" || o.Metadata.Annotations["note"] == "" {
			t.Errorf("something got lost: %s", b)
		}
	})
}

func TestWhatIsNoRecordIsLeftAlone(t *testing.T) {
	server := newAPIServer(t)
	revision := store.NewRevision()
	s := server.open(t, "", "gate", "router-0")
	large := base64.StdEncoding.EncodeToString(make([]byte, store.MaxValue+1))
	for what, o := range map[string]map[string]any{
		"held by others":   {"metadata": map[string]any{}, "spec": map[string]any{"holderIdentity": "some-controller"}},
		"a wrong revision": {"metadata": map[string]any{"annotations": map[string]any{"sluice/revision": "12", "sluice/record": ""}}},
		"no base64":        {"metadata": map[string]any{"annotations": map[string]any{"sluice/revision": revision, "sluice/record": "%"}}},
		"too large":        {"metadata": map[string]any{"annotations": map[string]any{"sluice/revision": revision, "sluice/record": large}}},
		"a strange object": {"metadata": map[string]any{"annotations": []int{1}}},
		"a huge object":    {"metadata": map[string]any{}, "more": strings.Repeat("x", 3<<20)},
	} {
		server.change(func() { server.put("gate", o) })
		if r, err := s.Read(t.Context()); !errors.Is(err, store.ErrForeign) {
			t.Errorf("%s: %.40v, %v", what, r, err)
		}
		if _, err := s.Write(t.Context(), []byte("mine"), ""); !errors.Is(err, store.ErrForeign) {
			t.Errorf("a write over %s: %v", what, err)
		}
	}
}

func TestAnswersOfTheAPIServer(t *testing.T) {
	server := newAPIServer(t)
	s := server.open(t, "", "gate", "router-0")
	revision, err := s.Write(t.Context(), []byte("one"), "")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		code         int
		reason, kind string
		want         error
	}{
		{http.StatusUnauthorized, "Unauthorized", "", store.ErrRefused},
		{http.StatusForbidden, "Forbidden", "leases", store.ErrRefused},
		{http.StatusNotFound, "NotFound", "namespaces", store.ErrRefused},
		{http.StatusNotFound, "", "", store.ErrRefused},
		{http.StatusUnprocessableEntity, "Invalid", "leases", store.ErrRefused},
		{http.StatusRequestEntityTooLarge, "RequestEntityTooLarge", "", store.ErrRefused},
		{http.StatusTooManyRequests, "TooManyRequests", "", store.ErrUnavailable},
		{http.StatusInternalServerError, "InternalError", "", store.ErrUnavailable},
		{http.StatusServiceUnavailable, "ServiceUnavailable", "", store.ErrUnavailable},
		{http.StatusGatewayTimeout, "Timeout", "", store.ErrUnavailable},
	} {
		for _, method := range []string{http.MethodGet, http.MethodPut} {
			server.change(func() {
				server.script = func(w http.ResponseWriter, r *http.Request) bool {
					if r.Method == method {
						status(w, c.code, c.reason, c.kind)
					}
					return r.Method == method
				}
			})
			if _, err := s.Write(t.Context(), []byte("two"), revision); !errors.Is(err, c.want) {
				t.Errorf("%s answered with %d %s: a write: %v", method, c.code, c.reason, err)
			}
			if _, err := s.Read(t.Context()); method == http.MethodGet && !errors.Is(err, c.want) {
				t.Errorf("%d %s: a read: %v", c.code, c.reason, err)
			}
		}
	}
	// Deleted between the two requests of a write.
	server.change(func() {
		server.script = func(w http.ResponseWriter, r *http.Request) bool {
			if r.Method == http.MethodPut {
				delete(server.objects, "gate")
			}
			return false
		}
	})
	if _, err := s.Write(t.Context(), []byte("two"), revision); !errors.Is(err, store.ErrConflict) {
		t.Errorf("a write to what was deleted: %v", err)
	}
}
