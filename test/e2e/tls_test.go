package e2e

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// engineName is what the engines' certificate is for: no address, so that only
// server_name makes it fit.
const engineName = "engine.example"

// authority signs certificates and keeps them in files.
type authority struct {
	t    testing.TB
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t testing.TB) *authority {
	a := &authority{t: t, dir: t.TempDir()}
	a.cert, a.key = a.issue("ca", &x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}, nil)
	return a
}

// issue makes NAME.pem and NAME.key. by is nil for one that signs itself.
func (a *authority) issue(name string, tmpl *x509.Certificate, by *authority) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	tmpl.SerialNumber, tmpl.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: name}
	tmpl.NotBefore, tmpl.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := tmpl, key
	if by != nil {
		parent, signer = by.cert, by.key
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	a.write(name+".pem", "CERTIFICATE", der)
	a.write(name+".key", "PRIVATE KEY", secret)
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

func (a *authority) write(name, kind string, der []byte) {
	a.t.Helper()
	if err := os.WriteFile(a.file(name), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		a.t.Fatal(err)
	}
}

func (a *authority) file(name string) string { return filepath.Join(a.dir, name) }

// tlsFront stands before an engine, asks for a certificate, and counts requests by
// the version of HTTP.
type tlsFront struct {
	url       string
	one, two  atomic.Int64
	forwarder *httputil.ReverseProxy
}

func (a *authority) front(engine string) *tlsFront {
	a.t.Helper()
	to, err := url.Parse(engine)
	if err != nil {
		a.t.Fatal(err)
	}
	pair, err := tls.LoadX509KeyPair(a.file("engine.pem"), a.file("engine.key"))
	if err != nil {
		a.t.Fatal(err)
	}
	clientCAs := x509.NewCertPool()
	clientCAs.AddCert(a.cert)
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		a.t.Fatal(err)
	}
	quiet := log.New(io.Discard, "", 0)
	f := &tlsFront{url: "https://" + ln.Addr().String()}
	transport := &http.Transport{DisableCompression: true}
	f.forwarder = &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, FlushInterval: -1, ErrorLog: quiet, Transport: transport,
	}
	s := &http.Server{Handler: f, ErrorLog: quiet, TLSConfig: &tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: clientCAs, ClientAuth: tls.RequireAndVerifyClientCert,
	}}
	over := make(chan struct{})
	go func() {
		defer close(over)
		_ = s.ServeTLS(ln, "", "") // ends with Close
	}()
	a.t.Cleanup(func() {
		_ = s.Close()
		<-over
		transport.CloseIdleConnections()
	})
	return f
}

func (f *tlsFront) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 2 {
		f.two.Add(1)
	} else {
		f.one.Add(1)
	}
	f.forwarder.ServeHTTP(w, r)
}

// Engines behind TLS, with an authority of their own, a name that is not their
// address, and a certificate asked for; over both versions of HTTP.
func TestEnginesBehindTLS(t *testing.T) {
	a := newAuthority(t)
	a.issue("engine", &x509.Certificate{DNSNames: []string{engineName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}}, a)
	a.issue("router", &x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}, a)
	trust := fmt.Sprintf("ca_file: %s, server_name: %s", a.file("ca.pem"), engineName)
	present := fmt.Sprintf(", cert_file: %s, key_file: %s", a.file("router.pem"), a.file("router.key"))
	for _, version := range []string{"HTTP/1.1", "HTTP/2"} {
		t.Run(version, func(t *testing.T) {
			f := startSim(t, "--prefill", "1", "--decode", "1")
			prefill, decode := a.front(f.worker("prefill-0").URL), a.front(f.worker("decode-0").URL)
			two := version == "HTTP/2"
			config := func(settings string) string {
				return writeFile(t, fmt.Sprintf(`fleet: {pd_disaggregation: true}
workers:
- {url: %q, worker_type: prefill, bootstrap_port: %d, http2: %t, tls: {%s}}
- {url: %q, worker_type: decode, http2: %t, tls: {%s}}
`, prefill.url, f.worker("prefill-0").BootstrapPort, two, settings, decode.url, two, settings))
			}
			r := launchRouter(t, f, nil, nil, "--config", config(trust+present))
			r.waitReady()
			for range 3 {
				r.ask(brief).good(t)
				r.ask(streamed).good(t)
			}
			if n1, n2 := prefill.one.Load()+decode.one.Load(), prefill.two.Load()+decode.two.Load(); two && n1 > 0 || !two && n2 > 0 {
				t.Errorf("%d requests over HTTP/1.1 and %d over HTTP/2", n1, n2)
			}
			if s := f.stats("decode-0"); s.Requests < 6 {
				t.Errorf("%d requests reached decode", s.Requests)
			}

			// Without the certificate that is asked for, or without trust, no worker
			// comes up, and it is said why.
			for _, wrong := range []string{trust, "server_name: " + engineName, strings.Replace(trust, engineName, "other.example", 1) + present} {
				r := launchRouter(t, f, nil, nil, "--config", config(wrong))
				eventually(t, "the router says what is wrong", func() string {
					_, body := r.get("/workers")
					if strings.Count(body, "certificate") >= 2 {
						return ""
					}
					return body
				})
				if status, _ := r.get("/readyz"); status != http.StatusServiceUnavailable {
					t.Errorf("%s: readiness %d", wrong, status)
				}
				if a := r.ask(brief); a.status != http.StatusServiceUnavailable {
					t.Errorf("%s: %s", wrong, a)
				}
			}
		})
	}
}
