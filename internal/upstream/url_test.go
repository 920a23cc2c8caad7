package upstream

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
)

// IPv6 addresses of pods made URLs without brackets, which reached nothing.
func TestIPv6AddressesKeepTheirBrackets(t *testing.T) {
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

// A trailing slash made a double slash and a 404.
func TestTrailingSlashOfAURLIsIgnored(t *testing.T) {
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
func TestBasePathIsPrependedOnce(t *testing.T) {
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
