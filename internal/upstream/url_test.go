package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/wire"
)

// IPv6 addresses of pods made URLs without brackets, which reached nothing.
func TestCase_B136_IPv6(t *testing.T) {
	same := func(want string, in ...string) {
		t.Helper()
		for _, s := range in {
			b, err := ParseBaseURL(s)
			if err != nil || b.String() != want {
				t.Errorf("%q: %q %v, want %q", s, b, err, want)
				continue
			}
			if again, err := ParseBaseURL(b.String()); err != nil || again != b {
				t.Errorf("%q is not canonical: %q %v", b, again, err)
			}
		}
	}
	same("http://[::1]", "::1", "[::1]", "http://[::1]:80", "http://[0:0::1]/", "HTTP://[::1]")
	same("http://[2001:db8::1]:30000", "[2001:DB8::1]:30000", "http://[2001:db8:0:0::1]:30000/")
	same("http://[fe80::1%25eth0]:1", "http://[fe80::1%25eth0]:1")
	same("http://[fe80::1%25eth0]", "fe80::1%eth0")
	if b, _ := ParseBaseURL("http://[fe80::1%25eth0]:1"); b.Addr() != "[fe80::1%eth0]:1" || b.authority() != "[fe80::1]:1" {
		t.Errorf("%q %q", b.Addr(), b.authority())
	}

	ln, err := net.Listen("tcp", "[::1]:0")
	if err != nil {
		t.Skip("no IPv6 here")
	}
	s := &httptest.Server{Listener: ln, Config: &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.Host) })}}
	s.Start()
	t.Cleanup(s.Close)
	transports(t, func(t *testing.T, cfg Config) {
		resp, err := endpoint(t, cfg, ln.Addr().String()).Do(context.Background(), post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if got := body(t, resp); got != ln.Addr().String() {
			t.Errorf("host %q", got)
		}
	})
}

// A trailing slash made a double slash and a 404; another spelling, a second worker.
func TestCase_B137_OneCanonicalURL(t *testing.T) {
	for want, in := range map[string][]string{
		"http://a":             {"a", "http://a", "http://a/", "http://A:80//", "HTTP://a", " http://a ", "a.", "http://a:080"},
		"https://a":            {"https://a:443/", "HTTPS://A"},
		"https://a:80":         {"https://a:80"},
		"http://10.0.0.1:3000": {"10.0.0.1:3000", "http://10.0.0.1:3000/"},
		"http://a/b%2Fc":       {"http://a/b%2Fc/"},
		"http://my_svc:1":      {"my_svc:1"},
	} {
		for _, s := range in {
			if b, err := ParseBaseURL(s); err != nil || b.String() != want {
				t.Errorf("%q: %q %v, want %q", s, b, err, want)
			}
		}
	}
	for _, s := range []string{"", " ", "http://", "ftp://a", "grpc://a", "http://a:0", "http://a:65536", "http://a:b", "http://a?x", "http://a/?", "http://a#", "http://a/../b",
		"http://user:pass@a", "a b", "http://a\r\nb", "::1:30000", "http://a b/", "http:///x", "http://[::1", "http://é", "http://a/\x00", "http://user:pass@a:b"} {
		b, err := ParseBaseURL(s)
		if err == nil {
			t.Errorf("%q was taken as %q", s, b)
		} else if strings.Contains(err.Error(), "pass") && strings.Contains(s, "pass") && !strings.Contains(err.Error(), "user or password") {
			t.Errorf("the password is in %q", err)
		}
	}
	transports(t, func(t *testing.T, cfg Config) {
		s := server(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })
		for _, base := range []string{s.URL, s.URL + "/", s.URL + "//"} {
			const path = "/v1/files/a%2Fb?q=%20&x=1&x=2"
			resp, err := endpoint(t, cfg, base).Do(context.Background(), &Request{Method: "GET", Path: path})
			if err != nil {
				t.Fatal(err)
			}
			if got := body(t, resp); got != path {
				t.Errorf("%q", got)
			}
		}
	})
}

// A base path was applied twice, or "/v1" doubled, and health checks had no way to
// the root.
func TestCase_B140_BasePathOnce(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		s := server(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, r.RequestURI) })
		for _, tc := range []struct{ base, path, want string }{
			{"/base", "/v1/models", "/base/v1/models"},
			{"/base/v1", "/v1/models", "/base/v1/models"},
			{"/base/v1/", "/v1/models?x", "/base/v1/models?x"},
			{"/v1", "/v1/models", "/v1/models"},
			{"/v1", "/health", "/health"},
			{"/base/v1", "/health", "/base/health"},
			{"/dev1", "/health", "/dev1/health"},
		} {
			e := endpoint(t, cfg, s.URL+tc.base)
			for atRoot, want := range map[bool]string{false: tc.want, true: tc.path} {
				resp, err := e.Do(context.Background(), &Request{Method: "GET", Path: tc.path, AtRoot: atRoot})
				if err != nil {
					t.Fatal(err)
				}
				if got := body(t, resp); got != want {
					t.Errorf("%s + %s at root %t: %q", tc.base, tc.path, atRoot, got)
				}
			}
		}
	})
}

// FuzzParseBaseURL: whatever is taken has one spelling and cannot break a head.
func FuzzParseBaseURL(f *testing.F) {
	for _, s := range []string{"http://a:1/b/v1", "::1", "https://[fe80::1%25eth0]:1/", "a.b:80//", "http://u:p@h", "http://a/%zz", "x://y"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		b, err := ParseBaseURL(s)
		if err != nil {
			return
		}
		again, err := ParseBaseURL(b.String())
		if err != nil || again != b {
			t.Fatalf("%q gives %q, which gives %q, %v", s, b, again, err)
		}
		for _, out := range []string{b.String(), b.Addr(), b.authority()} {
			if !wire.ValidValue(out) || strings.ContainsAny(out, " ?#") {
				t.Fatalf("%q gives %q", s, out)
			}
		}
	})
}
