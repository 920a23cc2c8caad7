package upstream

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/wire"
)

// authority is a CA made for one test.
type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	file string
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test CA"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	cert, _ := x509.ParseCertificate(der)
	a := &authority{cert: cert, key: key, file: filepath.Join(t.TempDir(), "ca.pem")}
	writePEM(t, a.file, "CERTIFICATE", der)
	return a
}

func writePEM(t *testing.T, file, kind string, der []byte) {
	t.Helper()
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
}

// issue makes a certificate for name, as files too.
func (a *authority) issue(t *testing.T, name string) (c tls.Certificate, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, DNSNames: []string{name},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	certFile, keyFile = filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writePEM(t, certFile, "CERTIFICATE", der)
	writePEM(t, keyFile, "EC PRIVATE KEY", kd)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, certFile, keyFile
}

func tlsServer(t *testing.T, c *tls.Config, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewUnstartedServer(h)
	s.TLS = c
	s.EnableHTTP2 = true
	s.Config.ErrorLog = discardLog()
	s.StartTLS()
	t.Cleanup(s.Close)
	return s
}

// Engines are addressed by IP with a certificate for a name. Every setting that makes
// this work must work, and a wrong one must say why.
func TestCertificateIsCheckedForAnIPAddress(t *testing.T) {
	ours, other := newAuthority(t), newAuthority(t)
	cert, _, _ := ours.issue(t, "engine.internal")
	s := tlsServer(t, &tls.Config{Certificates: []tls.Certificate{cert}}, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Proto)
	})
	transports(t, func(t *testing.T, cfg Config) {
		for _, h2 := range []bool{false, true} {
			ask := func(set TLS) (string, error) {
				cfg.TLS, cfg.HTTP2 = set, h2
				resp, err := endpoint(t, cfg, s.URL).Do(context.Background(), post("{}"))
				if err != nil {
					return "", err
				}
				return body(t, resp), nil
			}
			want := "HTTP/1.1"
			if h2 {
				want = "HTTP/2.0"
			}
			for name, set := range map[string]TLS{
				"own CA and name": {CAFile: ours.file, ServerName: "engine.internal"},
				"skip verify":     {SkipVerify: true},
			} {
				if got, err := ask(set); err != nil || got != want {
					t.Errorf("%s: %q %v", name, got, err)
				}
			}
			for name, set := range map[string]TLS{
				"certificate is valid for engine.internal": {CAFile: ours.file, ServerName: "another"},
				"doesn't contain any IP SANs":              {CAFile: ours.file},
				"unknown authority":                        {CAFile: other.file, ServerName: "engine.internal"},
			} {
				_, err := ask(set)
				if kindOf(err) != KindTLS || !nothingSent(err) {
					t.Errorf("%s: %v", name, err)
				} else if !strings.Contains(err.Error(), name) && !strings.Contains(err.Error(), "certificate") {
					t.Errorf("%q does not say %q", err, name)
				}
			}
		}
	})
}

func TestTLSSettingsAreChecked(t *testing.T) {
	ours := newAuthority(t)
	_, cert, key := ours.issue(t, "x")
	empty := filepath.Join(t.TempDir(), "empty")
	os.WriteFile(empty, nil, 0o600)
	for _, set := range []TLS{{CAFile: "/no/such/file"}, {CAFile: empty}, {CertFile: cert}, {KeyFile: key}, {CertFile: cert, KeyFile: cert}, {CertFile: cert, KeyFile: empty}} {
		if _, err := NewEndpoint(Config{URL: "https://x", TLS: set}); err == nil {
			t.Errorf("%+v was taken", set)
		}
	}
}

func TestClientCertificate(t *testing.T) {
	ours := newAuthority(t)
	cert, _, _ := ours.issue(t, "engine")
	_, certFile, keyFile := ours.issue(t, "router")
	pool := x509.NewCertPool()
	pool.AddCert(ours.cert)
	s := tlsServer(t, &tls.Config{Certificates: []tls.Certificate{cert}, ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: pool}, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.TLS.PeerCertificates[0].Subject.CommonName)
	})
	transports(t, func(t *testing.T, cfg Config) {
		cfg.TLS = TLS{RootCAs: pool, ServerName: "engine"}
		_, err := endpoint(t, cfg, s.URL).Do(context.Background(), post("{}"))
		if err == nil || !EngineFault(err) {
			t.Errorf("without: %v", err)
		}
		cfg.TLS.CertFile, cfg.TLS.KeyFile = certFile, keyFile
		resp, err := endpoint(t, cfg, s.URL).Do(context.Background(), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, resp); got != "router" {
			t.Errorf("known as %q", got)
		}
	})
}

// Over TLS everything is as without: reuse, big bodies both ways, streams, limits,
// leaving.
func TestTLSLikeTCP(t *testing.T) {
	ours := newAuthority(t)
	cert, _, _ := ours.issue(t, "engine")
	gone := make(chan struct{}, 1)
	step := make(chan struct{})
	s := tlsServer(t, &tls.Config{Certificates: []tls.Certificate{cert}}, func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/echo":
			b, _ := io.ReadAll(r.Body)
			w.Write(b)
		case "/stream":
			for i := range 5 {
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
				<-step
			}
		case "/silent":
			io.Copy(io.Discard, r.Body)
			w.(http.Flusher).Flush()
			<-r.Context().Done()
			gone <- struct{}{}
		}
	})
	for _, mode := range []string{"own", "nethttp", "http2"} {
		t.Run(mode, func(t *testing.T) {
			cfg := Config{TLS: TLS{CAFile: ours.file, ServerName: "engine"}, NetHTTP: mode == "nethttp", HTTP2: mode == "http2"}
			e := endpoint(t, cfg, s.URL)
			do := func(ctx context.Context, path string, segs [][]byte, l Limits) *Response {
				t.Helper()
				resp, err := e.Do(ctx, &Request{Method: "POST", Path: path, Body: segs, Limits: l})
				if err != nil {
					t.Fatal(err)
				}
				return resp
			}
			big := string(bigBody()[1][:3<<20])
			for _, want := range []string{"small", strings.Repeat("x", wire.BufSize), strings.Repeat("y", 70000), big} {
				if got := body(t, do(context.Background(), "/echo", [][]byte{[]byte(want[:3]), []byte(want[3:])}, Limits{})); got != want {
					t.Errorf("%d bytes came back as %d", len(want), len(got))
				}
			}
			if st := e.Stats(); st.Dials != 1 && mode != "http2" {
				t.Errorf("stats %+v", st)
			}
			resp := do(context.Background(), "/stream", nil, Limits{Header: patience, StreamIdle: patience})
			for i := range 5 {
				if p, err := resp.Body.Next(); err != nil || string(p) != fmt.Sprintf("data: %d\n\n", i) {
					t.Errorf("%q %v", p, err)
				}
				step <- struct{}{}
			}
			body(t, resp)

			resp = do(context.Background(), "/silent", [][]byte{[]byte("{}")}, Limits{Header: patience, StreamIdle: 30 * time.Millisecond})
			var ue *Error
			if _, err := resp.Body.Next(); !errors.As(err, &ue) || ue.Limit != LimitStreamIdle {
				t.Errorf("%v", err)
			}
			ctx, cancel := context.WithCancel(context.Background())
			resp = do(ctx, "/silent", [][]byte{[]byte("{}")}, Limits{})
			time.AfterFunc(10*time.Millisecond, cancel)
			if err := resp.Body.WaitReadable(); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
			resp = do(context.Background(), "/silent", nil, Limits{})
			resp.Body.Close()
			for range 3 {
				select {
				case <-gone:
				case <-time.After(patience):
					t.Error("the engine was not told")
				}
			}
			if n := e.Stats().Active; n != 0 {
				t.Errorf("%d active", n)
			}
		})
	}
}

// HTTP/2 without TLS, for engines behind a proxy that speaks nothing else.
func TestHTTP2WithPriorKnowledge(t *testing.T) {
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		w.Header().Set("Trailer", "X-Sum")
		fmt.Fprintf(w, "%s %s %s", r.Proto, r.Header.Get("Authorization"), b)
		w.Header().Set("X-Sum", "7")
	}))
	s.Config.Protocols = new(http.Protocols)
	s.Config.Protocols.SetUnencryptedHTTP2(true)
	s.Start()
	t.Cleanup(s.Close)
	e := endpoint(t, Config{HTTP2: true, APIKey: "k"}, s.URL)
	resp, err := e.Do(context.Background(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, resp); got != "HTTP/2.0 Bearer k {}" || resp.Body.Trailer("x-sum") != "7" {
		t.Errorf("%q trailer %q", got, resp.Body.Trailer("x-sum"))
	}
}

// A TLS stream over which nothing comes holds no read buffer of ours (what crypto/tls
// keeps is its own).
func TestIdleTLSStreamHoldsNoBuffer(t *testing.T) {
	if !wire.RawIO {
		t.Skip("only where sockets are read directly")
	}
	ours := newAuthority(t)
	cert, _, _ := ours.issue(t, "engine")
	s := tlsServer(t, &tls.Config{Certificates: []tls.Certificate{cert}}, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "x")
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	})
	e := endpoint(t, Config{TLS: TLS{CAFile: ours.file, ServerName: "engine"}}, s.URL)
	resp, err := e.Do(context.Background(), post("{}"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if _, err := resp.Body.Next(); err != nil {
		t.Fatal(err)
	}
	c := resp.Body.(*exchange).c
	// What Next does before it waits.
	if _, err := c.readTLS(true); err != wire.ErrWouldBlock || c.in.B != nil {
		t.Errorf("%v, buffer of %d bytes", err, len(c.in.B))
	}
}

// A stream over which nothing comes must cost next to nothing: no read buffer.
func TestIdleStreamHoldsNoBuffer(t *testing.T) {
	if !wire.RawIO {
		t.Skip("only where sockets are read directly")
	}
	const streams = 300
	s := script(t, func(n int, p *peer) {
		p.request()
		p.say("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n")
		<-p.end
	})
	e := endpoint(t, Config{}, s.url)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{}, streams)
	var open []*Response
	for range streams {
		resp, err := e.Do(ctx, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := resp.Body.Next(); err != nil {
			t.Fatal(err)
		}
		open = append(open, resp)
	}
	inUse := func() int64 {
		runtime.GC()
		runtime.GC() // pools keep what they hold for one cycle
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before := inUse() // each has its buffer still: the last piece lies in it
	for _, r := range open {
		go func() {
			_, _ = r.Body.Next()
			ended <- struct{}{}
		}()
	}
	// The waits have begun when the buffers are gone; a machine under load only takes
	// longer.
	var freed int64
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		if freed = (before - inUse()) / streams; freed > wire.BufSize/2 {
			break
		}
	}
	if freed <= wire.BufSize/2 {
		t.Errorf("waiting freed %d bytes a stream, a buffer has %d", freed, wire.BufSize)
	}
	cancel()
	for range streams {
		<-ended
	}
}
