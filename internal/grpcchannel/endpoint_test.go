package grpcchannel

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/internal/upstream"
)

func do(t *testing.T, ep *upstream.Endpoint, segs ...[]byte) (status int, body string) {
	t.Helper()
	resp, err := ep.Do(context.Background(), &upstream.Request{Method: "POST", Path: method, Body: segs})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	if int64(len(b)) != resp.ContentLength {
		t.Errorf("body of %d bytes, announced as %d", len(b), resp.ContentLength)
	}
	return resp.Status, string(b)
}

func TestDoIsAUnaryCall(t *testing.T) {
	e := startEngine(t, "127.0.0.1:0", func(s grpc.ServerStream, in []byte) error {
		if c := codes.Code(0); len(in) > 0 && in[0] == '!' {
			for _, ch := range in[1:] {
				c = c*10 + codes.Code(ch-'0')
			}
			return status.Error(c, "it said \"no\" \xff")
		}
		return s.SendMsg(in)
	})
	ep := endpoint(t, "grpc://"+e.addr, nil)
	if st, body := do(t, ep, []byte("ab"), nil, []byte("c")); st != 200 || body != "abc" {
		t.Errorf("got %d %q", st, body)
	}
	for code, want := range map[string]int{
		"1": 502, "2": 500, "3": 400, "4": 504, "5": 404, "6": 409, "7": 403, "8": 429, "9": 400, "10": 409,
		"11": 400, "12": 501, "13": 500, "14": 503, "15": 500, "16": 401, "77": 500,
	} {
		st, body := do(t, ep, []byte("!"+code))
		if st != want {
			t.Errorf("status %s became %d, want %d", code, st, want)
		}
		if !strings.HasPrefix(body, `{"error":{"message":"it said \"no\" `) {
			t.Errorf("status %s has the body %s", code, body)
		}
	}
}

func TestDoTellsOfTheTransport(t *testing.T) {
	ep := endpoint(t, "grpc://"+closedPort(t), nil)
	_, err := ep.Do(context.Background(), &upstream.Request{Method: "POST", Path: method})
	wantKind(t, err, upstream.KindRefused, upstream.OpDial, false)
}

// authority makes certificates for 127.0.0.1, and has its own as a file.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "test"}, NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	a := &authority{dir: t.TempDir(), key: key, pool: x509.NewCertPool()}
	a.cert, _ = x509.ParseCertificate(der)
	a.pool.AddCert(a.cert)
	a.write(t, "ca.pem", "CERTIFICATE", der)
	return a
}

func (a *authority) write(t *testing.T, name, kind string, der []byte) string {
	t.Helper()
	p := filepath.Join(a.dir, name)
	if err := os.WriteFile(p, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

// issue returns the files of a certificate and its key.
func (a *authority) issue(t *testing.T, name string) (cert, key string) {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), Subject: pkix.Name{CommonName: name}, NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, DNSNames: []string{name},
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, a.cert, &k.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	kd, err := x509.MarshalECPrivateKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return a.write(t, name+".pem", "CERTIFICATE", der), a.write(t, name+".key", "EC PRIVATE KEY", kd)
}

func TestTLS(t *testing.T) {
	a, other := newAuthority(t), newAuthority(t)
	cert, key := a.issue(t, "engine")
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	plain := startEngine(t, "127.0.0.1:0", echo, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{pair}})))
	mutual := startEngine(t, "127.0.0.1:0", echo, grpc.Creds(credentials.NewTLS(&tls.Config{
		Certificates: []tls.Certificate{pair}, ClientCAs: a.pool, ClientAuth: tls.RequireAndVerifyClientCert,
	})))
	ca := filepath.Join(a.dir, "ca.pem")
	clientCert, clientKey := a.issue(t, "router")
	for _, c := range []struct {
		name string
		addr string
		tls  upstream.TLS
		fine bool
	}{
		{"known authority", plain.addr, upstream.TLS{CAFile: ca}, true},
		{"server name", plain.addr, upstream.TLS{CAFile: ca, ServerName: "engine"}, true},
		{"wrong server name", plain.addr, upstream.TLS{CAFile: ca, ServerName: "else"}, false},
		{"unknown authority", plain.addr, upstream.TLS{CAFile: filepath.Join(other.dir, "ca.pem")}, false},
		{"the system's authorities", plain.addr, upstream.TLS{}, false},
		{"no verification", plain.addr, upstream.TLS{SkipVerify: true}, true},
		{"client certificate", mutual.addr, upstream.TLS{CAFile: ca, CertFile: clientCert, KeyFile: clientKey}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			ep := endpoint(t, "grpcs://"+c.addr, func(u *upstream.Config) { u.TLS = c.tls })
			_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
			switch {
			case c.fine && err != nil:
				t.Error(err)
			case !c.fine:
				wantKind(t, err, upstream.KindTLS, upstream.OpTLS, false)
			}
		})
	}
	t.Run("no client certificate", func(t *testing.T) {
		ep := endpoint(t, "grpcs://"+mutual.addr, func(u *upstream.Config) { u.TLS.CAFile = ca })
		_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
		// The server ends the connection behind its alert, which may be seen first.
		if e := transportError(t, err); e.Sent || e.Kind != upstream.KindTLS && e.Kind != upstream.KindReset {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("TLS to a server without", func(t *testing.T) {
		e := startEngine(t, "127.0.0.1:0", echo)
		ep := endpoint(t, "grpcs://"+e.addr, nil)
		_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
		if e := transportError(t, err); e.Sent || e.Op != upstream.OpTLS {
			t.Errorf("got %+v", e)
		}
	})
	t.Run("no TLS to a server with it", func(t *testing.T) {
		ep := endpoint(t, "grpc://"+plain.addr, nil)
		_, err := ep.Channel().Invoke(context.Background(), method, nil, upstream.CallOptions{})
		if e := transportError(t, err); e.Sent {
			t.Errorf("got %+v", e)
		}
	})
}
