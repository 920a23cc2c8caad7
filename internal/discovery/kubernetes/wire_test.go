package kubernetes

import (
	"context"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/config/configtest"
	"github.com/sluice-router/sluice/internal/discovery"
)

// kubeconfig writes a file with the server, its certificate authority and a token file.
func kubeconfig(t *testing.T, s *httptest.Server, tokenFile string) string {
	t.Helper()
	ca := base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}))
	file := filepath.Join(t.TempDir(), "kubeconfig")
	text := fmt.Sprintf(`apiVersion: v1
kind: Config
current-context: c
contexts: [{name: c, context: {cluster: k, user: u}}]
clusters: [{name: k, cluster: {server: %q, certificate-authority-data: %s}}]
users: [{name: u, user: {tokenFile: %q}}]
`, s.URL, ca, tokenFile)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// run runs a source until the test ends, and returns its readings.
func run(t *testing.T, change func(*config.Config)) <-chan discovery.Reading {
	t.Helper()
	source, err := New(Options{UserAgent: "sluice/test", ping: 500 * time.Millisecond, Config: configtest.New(func(c *config.Config) {
		whole(c)
		change(c)
	})})
	if err != nil {
		t.Fatal(err)
	}
	readings := make(chan discovery.Reading)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		source.Run(ctx, func(r discovery.Reading) {
			select {
			case readings <- r:
			case <-ctx.Done():
			}
		})
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return readings
}

func until(t *testing.T, readings <-chan discovery.Reading, what string, ok func(discovery.Reading) bool) {
	t.Helper()
	limit := time.After(30 * time.Second)
	for {
		select {
		case r := <-readings:
			if ok(r) {
				return
			}
		case <-limit:
			t.Fatalf("no reading %s", what)
		}
	}
}

func workers(n int) func(discovery.Reading) bool {
	return func(r discovery.Reading) bool { return r.Err == nil && len(r.Workers) == n }
}

// Over a real connection with TLS: the token is refused, and the new one in the file is
// used without a restart.
func TestAnExpiredTokenIsReadAgain(t *testing.T) {
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprintf("http2=%t", http2), func(t *testing.T) {
			api := newAPIServer()
			api.token = "first"
			api.putPod(pod("a", "10.0.0.1"))
			server := httptest.NewUnstartedServer(api)
			server.EnableHTTP2 = http2
			server.StartTLS()
			defer server.Close()
			token := filepath.Join(t.TempDir(), "token")
			if err := os.WriteFile(token, []byte("first\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			t.Setenv(clientcmd.RecommendedConfigPathEnvVar, kubeconfig(t, server, token))
			readings := run(t, func(*config.Config) {})
			until(t, readings, "with one worker", workers(1))
			api.putPod(pod("b", "10.0.0.2"))
			until(t, readings, "with two workers", workers(2))

			api.setToken("second")
			api.cut()
			until(t, readings, "that fails", func(r discovery.Reading) bool {
				return r.Err != nil && strings.Contains(r.Err.Error(), "the API server does not accept the credentials")
			})
			api.putPod(pod("c", "10.0.0.3"))
			if err := os.WriteFile(token, []byte("second\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			until(t, readings, "with three workers", workers(3))
			api.cut()
		})
	}
}

// The server is away, comes back at its address, and nothing has to be done.
func TestTheServerIsRestarted(t *testing.T) {
	api := newAPIServer()
	api.putPod(pod("a", "10.0.0.1"))
	server := httptest.NewTLSServer(api)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := kubeconfig(t, server, token)
	readings := run(t, func(c *config.Config) { c.Kubernetes.Kubeconfig = file })
	until(t, readings, "with one worker", workers(1))

	// A watch that has not begun would be asked for again without a list.
	api.putPod(pod("b", "10.0.0.2"))
	until(t, readings, "with two workers", workers(2))
	server.CloseClientConnections()
	until(t, readings, "after a cut", workers(2))

	address, tls := server.Listener.Addr().String(), server.TLS
	api.cut()
	server.Close()
	until(t, readings, "that fails", func(r discovery.Reading) bool { return r.Err != nil })
	api.putPod(pod("c", "10.0.0.3"))
	again := httptest.NewUnstartedServer(api)
	if err := again.Listener.Close(); err != nil {
		t.Fatal(err)
	}
	again.Listener = listen(t, address)
	again.TLS = tls
	again.StartTLS()
	defer again.Close()
	until(t, readings, "with three workers", workers(3))
	api.cut()
}

func listen(t *testing.T, address string) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Skipf("the port was taken meanwhile: %v", err)
	}
	return l
}

// A server that is frozen accepts bytes and answers nothing: its connection is given up
// long before the watch would end.
func TestAFrozenServerIsGivenUp(t *testing.T) {
	api := newAPIServer()
	api.putPod(pod("a", "10.0.0.1"))
	server := httptest.NewUnstartedServer(api)
	server.EnableHTTP2 = true
	server.StartTLS()
	defer server.Close()
	proxy := newFreezer(t, server.Listener.Addr().String())
	server.URL = "https://" + proxy.address()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	file := kubeconfig(t, server, token)
	readings := run(t, func(c *config.Config) { c.Kubernetes.Kubeconfig = file })
	until(t, readings, "with one worker", workers(1))
	for watches := 0; watches == 0; runtime.Gosched() {
		_, watches = api.counts()
	}
	proxy.freeze()
	api.putPod(pod("b", "10.0.0.2"))
	until(t, readings, "with two workers", workers(2))
	api.cut()
}

// freezer passes connections on until they are frozen; later ones are passed on.
type freezer struct {
	listener net.Listener
	to       string

	mu     sync.Mutex
	frozen chan struct{} // of the connections so far
}

func newFreezer(t *testing.T, to string) *freezer {
	f := &freezer{to: to, frozen: make(chan struct{}), listener: listen(t, "127.0.0.1:0")}
	var all sync.WaitGroup
	ctx, cancel := context.WithCancel(context.Background())
	all.Go(func() {
		for {
			in, err := f.listener.Accept()
			if err != nil {
				return
			}
			out, err := net.Dial("tcp", f.to)
			if err != nil {
				_ = in.Close()
				continue
			}
			f.mu.Lock()
			frozen := f.frozen
			f.mu.Unlock()
			pass := func(to, from net.Conn) {
				buf := make([]byte, 32<<10)
				for {
					n, err := from.Read(buf)
					select {
					case <-frozen: // what comes is swallowed
						n = 0
					default:
					}
					if n > 0 {
						_, err = to.Write(buf[:n])
					}
					if err != nil {
						_, _ = to.Close(), from.Close()
						return
					}
				}
			}
			all.Go(func() { pass(out, in) })
			all.Go(func() { pass(in, out) })
			all.Go(func() {
				<-ctx.Done()
				_, _ = in.Close(), out.Close()
			})
		}
	})
	t.Cleanup(func() {
		_ = f.listener.Close()
		cancel()
		all.Wait()
	})
	return f
}

func (f *freezer) address() string { return f.listener.Addr().String() }

func (f *freezer) freeze() {
	f.mu.Lock()
	defer f.mu.Unlock()
	close(f.frozen)
	f.frozen = make(chan struct{})
}

func TestAnswersAreBounded(t *testing.T) {
	b := &limitedBody{ReadCloser: io.NopCloser(strings.NewReader("123456789")), left: 5}
	if _, err := io.ReadAll(b); err == nil || !strings.Contains(err.Error(), "larger than") {
		t.Errorf("error %v", err)
	}
	b = &limitedBody{ReadCloser: io.NopCloser(strings.NewReader("12345")), left: 5}
	if got, err := io.ReadAll(b); err != nil || string(got) != "12345" {
		t.Errorf("%q, %v", got, err)
	}
}
