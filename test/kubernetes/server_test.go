//go:build kubernetes

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// A source without rights says so and tries again: with the rights come the pods. When
// they are taken away, the last good set serves on.
func TestRightsComeAndGo(t *testing.T) {
	t.Parallel()
	b := newBareBed(t)
	pods := b.start(regular("a"), regular("b"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	eventually(t, "the log says what is forbidden", func() string {
		if len(r.lines("forbidden")) == 0 {
			return "it does not"
		}
		return ""
	})
	if w := r.workers(); len(w) != 0 {
		t.Errorf("workers without rights: %s", w)
	}
	granted := time.Now()
	b.grant()
	r.sees(pods...)
	t.Logf("the pods were workers %s after the rights were given", time.Since(granted).Round(10*time.Millisecond))

	l := r.load()
	b.revoke()
	l.more(40)
	for _, p := range pods {
		if w := r.worker(p.url()); w.Status != "ready" {
			t.Errorf("without rights: %s", w)
		}
	}
	b.grant()
	pods = append(pods, b.start(regular("c"))...)
	r.sees(pods...)
	l.good()
}

// The account of a pod: address, certificate and token lie in files, and a token that is
// replaced there is taken up.
func TestAccountOfThePod(t *testing.T) {
	t.Parallel()
	if out, err := exec.Command("unshare", "--mount", "true").CombinedOutput(); err != nil {
		t.Skipf("this needs a mount namespace of its own: %v: %s", err, out)
	}
	b := newBed(t)
	server := cluster.Server(0)
	dir := t.TempDir()
	write := func(name string, content []byte) {
		t.Helper()
		temporary := filepath.Join(dir, "."+name)
		must(t, os.WriteFile(temporary, content, 0o600))
		must(t, os.Rename(temporary, filepath.Join(dir, name)))
	}
	write("token", []byte(b.token))
	write("ca.crt", cluster.certs.authority)
	write("namespace", []byte(b.namespace))
	host, port, err := net.SplitHostPort(strings.TrimPrefix(server.URL, "https://"))
	must(t, err)
	const at = "/run/secrets/kubernetes.io"
	script := "mount -t tmpfs none /run && mkdir -p " + at + "/serviceaccount && mount --bind " + dir + " " + at + "/serviceaccount && " +
		"{ [ /var/run -ef /run ] || mount --rbind /run /var/run; } && exec \"$@\""
	flags := b.selects(server)[2:]
	r := startRouterAs(t, []string{"unshare", "--mount", "sh", "-c", script, "sh"},
		[]string{"KUBERNETES_SERVICE_HOST=" + host, "KUBERNETES_SERVICE_PORT=" + port}, flags...)
	pods := b.start(regular("a"), regular("b"))
	r.sees(pods...)

	// The account is made anew, so that its old token is good for nothing.
	accounts := "/api/v1/namespaces/" + b.namespace + "/serviceaccounts"
	must(t, admin.Delete(t.Context(), accounts+"/sluice", -1, ""))
	must(t, admin.Create(t.Context(), accounts, object{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": object{"name": "sluice"}}))
	eventually(t, "the old token is refused", func() string {
		err := server.Client(b.token).do(t.Context(), http.MethodGet, "/api/v1/namespaces/"+b.namespace+"/pods", "", nil, nil)
		if !hasCode(err, http.StatusUnauthorized) {
			return fmt.Sprint(err)
		}
		return ""
	})
	token, err := admin.Token(t.Context(), b.namespace, "sluice")
	must(t, err)
	write("token", []byte(token))
	pods = append(pods, b.start(regular("c"))...)
	r.sees(pods...)
	r.one(question{tokens: 2})
}

// count sums the series of a server's metrics that begin and go on so.
func (s *APIServer) count(t testing.TB, prefix, label string) (n int) {
	t.Helper()
	resp, err := s.Admin().send(t.Context(), http.MethodGet, "/metrics", "", nil)
	must(t, err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	must(t, err)
	for line := range strings.Lines(string(b)) {
		if !strings.HasPrefix(line, prefix) || !strings.Contains(line, label) {
			continue
		}
		v, err := strconv.ParseFloat(strings.TrimSpace(line[strings.LastIndexByte(line, ' '):]), 64)
		must(t, err)
		n += int(v)
	}
	return n
}

// An API server that is killed and comes back: what happened meanwhile is seen, the
// deletion whose event nobody will ever send as well, and the server is not stormed.
func TestServerIsKilled(t *testing.T) {
	t.Parallel()
	server, err := cluster.AddServer(t.Context())
	must(t, err)
	t.Cleanup(server.Kill)
	b := newBed(t)
	pods := b.start(regular("a").with(annotationGhost, "true"), regular("b"), regular("c").with(annotationGhost, "true"))
	r := startRouter(t, b.selects(server)...)
	r.sees(pods...)
	l := r.load()
	l.more(20)

	server.Kill()
	// One that starts meanwhile waits for it.
	later := startRouter(t, b.selects(server)...)
	if status, body := get("http://" + later.addr + "/readyz"); status != http.StatusServiceUnavailable {
		t.Errorf("without an API server: /readyz answers %d %s", status, clip(body))
	}
	l.more(40)
	for _, p := range pods {
		if w := r.worker(p.url()); w.Status != "ready" {
			t.Errorf("without an API server: %s", w)
		}
	}
	b.delete("a", 0)
	pods = append(pods[1:], b.start(regular("d"))...)
	must(t, server.Start(t.Context()))
	back := time.Now()
	r.sees(pods...)
	later.sees(pods...)
	later.one(question{tokens: 2})
	t.Logf("the workers were right %s after the server was back", time.Since(back).Round(10*time.Millisecond))
	l.more(20)

	// The same with the history forgotten: the server cannot go on from where the watch
	// was and answers 410.
	server.Kill()
	b.delete("c", 0)
	pods = append(pods[:1], append(b.start(regular("e")), pods[2:]...)...)
	must(t, cluster.Compact(t.Context()))
	must(t, server.Start(t.Context()))
	back = time.Now()
	r.sees(pods...)
	t.Logf("after a compaction the workers were right %s after the server was back", time.Since(back).Round(10*time.Millisecond))
	l.more(20)
	l.good()
	if n := server.count(t, "apiserver_request_total{", `resource="pods"`); n > 60 {
		t.Errorf("the server had %d requests of pods since its start", n)
	}
}

// A list in which most pods are missing, with no event that said so, is not believed at
// once: they serve on for as long as it is held back.
func TestListThatLacksMostPods(t *testing.T) {
	t.Parallel()
	server, err := cluster.AddServer(t.Context())
	must(t, err)
	t.Cleanup(server.Kill)
	b := newBed(t)
	var names []string
	for i := range 5 {
		names = append(names, fmt.Sprintf("p%d", i))
		b.create(regular(names[i]).with(annotationGhost, "true"))
	}
	pods := b.ready(names...)
	r := startRouter(t, append(b.selects(server), "--source-hold-secs", "8")...)
	r.sees(pods...)
	l := r.load()
	server.Kill()
	for _, name := range names[1:] {
		b.delete(name, 0)
	}
	must(t, server.Start(t.Context()))
	eventually(t, "the drop is held back", func() string {
		if len(r.lines("is held back")) == 0 {
			return "no line says so"
		}
		return ""
	})
	began := time.Now()
	for _, p := range pods {
		if w := r.worker(p.url()); w.Status != "ready" {
			t.Errorf("while the drop is held back: %s", w)
		}
	}
	r.sees(pods[0])
	t.Logf("the drop took effect after %s", time.Since(began).Round(100*time.Millisecond))
	l.more(20)
	l.good()
}

// A server that has no room for the account's requests and says so (429): it is not
// stormed, what is known stays in force, and the source goes on when there is room.
func TestServerIsBusy(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	pods := b.start(regular("a"), regular("b"))
	r := startRouter(t, b.selects(cluster.Server(0))...)
	r.sees(pods...)
	const api = "/apis/flowcontrol.apiserver.k8s.io/v1/"
	must(t, admin.Create(t.Context(), api+"prioritylevelconfigurations", object{
		"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "PriorityLevelConfiguration", "metadata": object{"name": "no-room"},
		"spec": object{"type": "Limited", "limited": object{"nominalConcurrencyShares": 0, "lendablePercent": 0, "borrowingLimitPercent": 0,
			"limitResponse": object{"type": "Reject"}}}}))
	must(t, admin.Create(t.Context(), api+"flowschemas", object{
		"apiVersion": "flowcontrol.apiserver.k8s.io/v1", "kind": "FlowSchema", "metadata": object{"name": b.namespace},
		"spec": object{"priorityLevelConfiguration": object{"name": "no-room"}, "matchingPrecedence": 2, "rules": []object{{
			"subjects":      []object{{"kind": "ServiceAccount", "serviceAccount": object{"name": "sluice", "namespace": b.namespace}}},
			"resourceRules": []object{{"verbs": []string{"*"}, "apiGroups": []string{"*"}, "resources": []string{"*"}, "namespaces": []string{"*"}, "clusterScope": true}},
		}}}}))
	account := cluster.Server(0).Client(b.token)
	list := func() error {
		return account.do(t.Context(), http.MethodGet, "/api/v1/namespaces/"+b.namespace+"/pods", "", nil, nil)
	}
	var release func()
	eventually(t, "the account has no room", func() string {
		release = b.hold(account)
		for range 20 { // the holding request may still be on its way
			if hasCode(list(), http.StatusTooManyRequests) {
				return ""
			}
			time.Sleep(10 * time.Millisecond)
		}
		release() // it came before the server knew the level
		return "its requests are served"
	})
	// The watch that was there goes on; a router that starts now gets nowhere.
	before := tooMany(t, b)
	later := startRouter(t, b.selects(cluster.Server(0))...)
	eventually(t, "the log says why", func() string {
		if len(later.lines("too many requests")) == 0 && len(later.lines("TooManyRequests")) == 0 {
			return "it does not"
		}
		return ""
	})
	l := r.load()
	l.more(200)
	l.good()
	if n := tooMany(t, b) - before; n > 20 {
		t.Errorf("the server refused %d requests meanwhile", n)
	}
	release()
	pods = append(pods, b.start(regular("c"))...)
	later.sees(pods...)
	r.sees(pods...)
}

// hold sends a request whose body does not end: it takes the one place that even a level
// without room has, until release.
func (b *bed) hold(account *Client) (release func()) {
	body, feed := io.Pipe()
	ctx, cancel := context.WithCancel(context.Background())
	over := make(chan struct{})
	go func() {
		defer close(over)
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, account.base+"/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", body)
		if err != nil {
			b.t.Error(err)
			return
		}
		req.Header.Set("Authorization", "Bearer "+account.token)
		req.Header.Set("Content-Type", "application/json")
		if resp, err := account.http.Do(req); err == nil {
			resp.Body.Close()
		}
	}()
	release = sync.OnceFunc(func() {
		cancel()
		feed.Close()
		<-over
	})
	b.t.Cleanup(release)
	return release
}

// tooMany counts what the API server has refused for lack of room.
func tooMany(t testing.TB, b *bed) (n int) {
	return cluster.Server(0).count(t, "apiserver_flowcontrol_rejected_requests_total{", `flow_schema="`+b.namespace+`"`)
}

// A server that goes silent: its connections stay and say nothing. The one behind the
// same name that serves tells what happened.
func TestServerFallsSilent(t *testing.T) {
	t.Parallel()
	server, err := cluster.AddServer(t.Context())
	must(t, err)
	t.Cleanup(server.Kill)
	b := newBed(t)
	pods := b.start(regular("a").with(annotationGhost, "true"), regular("b"))
	front := startFront(t, server)
	r := startRouter(t, b.selects(&front.APIServer)...)
	r.sees(pods...)
	l := r.load()
	l.more(20)
	must(t, server.Freeze())
	frozen := time.Now()
	front.front.to(cluster.Server(0))
	b.delete("a", 0)
	within(t, 40*time.Second, "the deleted pod is no worker", func() string {
		if w := r.worker(pods[0].url()); w.Status != "gone" {
			return w.String()
		}
		return ""
	})
	t.Logf("a silent server was left after %s", time.Since(frozen).Round(100*time.Millisecond))

	// One that starts in front of the silent server serves what it knows otherwise, and ends
	// when it is told to.
	alone := startRouter(t, append(b.selects(server), "--worker-urls", pods[1].url())...)
	alone.becomes(pods[1], "ready")
	alone.one(question{tokens: 2})
	must(t, alone.Signal(syscall.SIGTERM))
	stopped := time.Now()
	select {
	case <-alone.Done():
		t.Logf("a router in front of a silent server ended after %s", time.Since(stopped).Round(10*time.Millisecond))
	case <-time.After(20 * time.Second):
		t.Error("a router in front of a silent server does not end")
	}
	pods = append(pods[1:], b.start(regular("c"))...)
	r.sees(pods...)
	l.more(20)
	l.good()
	must(t, server.Thaw())
}

// front forwards connections to a server: the address of a control plane with several.
type front struct {
	listener net.Listener
	over     sync.WaitGroup
	cancel   context.CancelFunc

	mu     sync.Mutex
	server *APIServer // guarded by mu
}

// startFront starts one in front of a server. The result's URL is its own.
func startFront(t testing.TB, server *APIServer) *frontedServer {
	t.Helper()
	l, err := net.Listen("tcp", cluster.address(0, 1)+":0")
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	f := &front{listener: l, cancel: cancel, server: server}
	f.over.Go(func() { f.serve(ctx) })
	t.Cleanup(func() {
		cancel()
		l.Close()
		f.over.Wait()
	})
	return &frontedServer{APIServer: APIServer{URL: "https://" + l.Addr().String(), cluster: cluster}, front: f}
}

type frontedServer struct {
	APIServer
	front *front
}

// to lets new connections go to another server.
func (f *front) to(server *APIServer) {
	f.mu.Lock()
	f.server = server
	f.mu.Unlock()
}

func (f *front) serve(ctx context.Context) {
	for {
		client, err := f.listener.Accept()
		if err != nil {
			return
		}
		f.mu.Lock()
		address := strings.TrimPrefix(f.server.URL, "https://")
		f.mu.Unlock()
		server, err := net.Dial("tcp", address)
		if err != nil {
			client.Close()
			continue
		}
		stop := context.AfterFunc(ctx, func() {
			client.Close()
			server.Close()
		})
		f.over.Go(func() {
			defer stop()
			defer client.Close()
			_, _ = io.Copy(client, server) // until one of them closes
		})
		f.over.Go(func() {
			defer server.Close()
			_, _ = io.Copy(server, client)
		})
	}
}
