package workerurl

import (
	"net/http"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/wire"
)

// TestOneSpellingOfIPv6 guards against worker URLs that are invalid for
// IPv6 addresses: they are bracketed, in one form, and a bare one is refused
// with the right spelling.
func TestOneSpellingOfIPv6(t *testing.T) {
	checkURLs(t, [][2]string{
		{"http://[::1]:30000", "http://[::1]:30000"},
		{"http://[2001:DB8:0:0::1]:80/", "http://[2001:db8::1]"},
		{"http://[fe80::1%25eth0]:1", "http://[fe80::1%25eth0]:1"},
		{"http://::1", "!has an IPv6 address without brackets; write it like http://[::1]:30000"},
		{"https://2001:db8::1", "!has an IPv6 address without brackets; write it like https://[::1]:30000"},
		{"::1", "!must begin with http:// or https://, or with grpc:// or grpcs://"},
		{"http://[::1", "!has an IPv6 address without its closing bracket, or something between that and the port"},
		{"http://[::1]30000", "!has an IPv6 address without its closing bracket, or something between that and the port"},
		{"http://[1.2.3.4]", "!has no IPv6 address in its brackets"},
		{"http://[]", "!has no IPv6 address in its brackets"},
	})
}

// TestOneWorkerWhateverTheSlash guards against double slashes and the
// same worker counted twice: slash at the end, case and default port make no
// difference.
func TestOneWorkerWhateverTheSlash(t *testing.T) {
	checkURLs(t, [][2]string{
		{"http://a", "http://a"},
		{"HTTP://A:80/", "http://a"},
		{"http://a///", "http://a"},
		{"https://a:443", "https://a"},
		{"https://a:80", "https://a:80"},
		{"http://a:08080", "http://a:8080"},
		{"http://a/v1/", "http://a"},
		{"http://a/v1", "http://a"},
		{"http://a/base/v1/v1", "http://a/base"},
		{"http://a/v1/base", "http://a/v1/base"},
		{"http://a/v10", "http://a/v10"},
		{"http://a/V1%2Fx/y", "http://a/V1%2Fx/y"},
		{"http://10.0.0.1:30000", "http://10.0.0.1:30000"},
		{"http://my_host.svc.", "http://my_host.svc"},
		{"GRPC://Host:50051", "grpc://host:50051"},
		{"grpcs://[::1]:443/", "grpcs://[::1]:443"},
		{"grpc://h:80/v1", "grpc://h:80"},
	})
}

func TestURLsRefused(t *testing.T) {
	checkURLs(t, [][2]string{
		{"", "!is empty; write a URL like http://10.0.0.1:30000"},
		{"a:30000", "!must begin with http:// or https://, or with grpc:// or grpcs://"},
		{"//a", "!must begin with http:// or https://, or with grpc:// or grpcs://"},
		{"ftp://a", "!must begin with http:// or https://, or with grpc:// or grpcs://"},
		{"grpc://a", "!must have a port; write it like grpc://host:50051"},
		{"grpcs://[::1]", "!must have a port; write it like grpcs://host:50051"},
		{"grpc://a:1/base", "!must have no path: the methods of gRPC have none in front of them"},
		{"grpc://a:0", "!must have a port from 1 to 65535 after the colon"},
		{"http://", "!has no host"},
		{"http://:1", "!has no host"},
		{"http:///x", "!has no host"},
		{"http://a:", "!must have a port from 1 to 65535 after the colon"},
		{"http://a:0", "!must have a port from 1 to 65535 after the colon"},
		{"http://a:65536", "!must have a port from 1 to 65535 after the colon"},
		{"http://a:+1", "!must have a port from 1 to 65535 after the colon"},
		{"http://-a", "!has a host that is neither a name nor an address"},
		{"http://a,b", "!has a host that is neither a name nor an address"},
		{"http://a?b", "!must have no query and no fragment"},
		{"http://a/#", "!must have no query and no fragment"},
		{"http://u@a", "!must have no user name or password; give the key with api_key"},
		{"http://a b", "!has a space or another character that a URL cannot hold"},
		{"http://a\r\nX: y", "!has a space or another character that a URL cannot hold"},
		{"http://bücher", "!has a character outside ASCII; write the host name in its xn-- form"},
		{"http://a/%zz", "!has a wrong % escape in its path"},
	})
}

func checkURLs(t *testing.T, table [][2]string) {
	t.Helper()
	for _, tc := range table {
		u, err := Parse(tc[0])
		got := u.String()
		if err != nil {
			got = "!" + err.Error()
		} else if again, err := Parse(got); again != u {
			t.Errorf("Parse(%q) = %q, and of that %q, %v", tc[0], got, again, err)
		} else if loose, err := ParseLoose(tc[0]); loose != u {
			t.Errorf("ParseLoose(%q) = %q, %v; Parse: %q", tc[0], loose, err, u)
		}
		if got != tc[1] {
			t.Errorf("Parse(%q) = %q, want %q", tc[0], got, tc[1])
		}
	}
}

// TestLoose shows what a person may leave out in a pin.
func TestLoose(t *testing.T) {
	for want, in := range map[string][]string{
		"http://[::1]":               {"::1", "[::1]", "http://[::1]:80", "http://[0:0::1]/", "HTTP://[::1]"},
		"http://[2001:db8::1]:30000": {"[2001:DB8::1]:30000", "http://[2001:db8:0:0::1]:30000/"},
		"http://[fe80::1%25eth0]:1":  {"http://[fe80::1%25eth0]:1"},
		"http://[fe80::1%25eth0]":    {"fe80::1%eth0"},
		"http://a":                   {"a", "http://a", "http://a/", "http://A:80//", " http://a ", "a.", "http://a:080"},
		"https://a":                  {"https://a:443/", "HTTPS://A"},
		"http://10.0.0.1:3000":       {"10.0.0.1:3000", "http://10.0.0.1:3000/"},
		"http://a/b%2Fc":             {"http://a/b%2Fc/"},
		"http://my_svc:1":            {"my_svc:1"},
	} {
		for _, s := range in {
			if u, err := ParseLoose(s); err != nil || u.String() != want {
				t.Errorf("%q: %q %v, want %q", s, u, err, want)
			}
		}
	}
	for _, s := range []string{"", " ", "http://", "ftp://a", "grpc://a", "http://a:b", "http://a/../b", "http://a/./b", "http://a..b",
		"http://user:pass@a", "a b", "::1:30000", "http://a b/", "http:///x", "http://a/\x00", "http://user:pass@a:b"} {
		u, err := ParseLoose(s)
		if err == nil {
			t.Errorf("%q was taken as %q", s, u)
		} else if strings.Contains(err.Error(), "pass@") {
			t.Errorf("the password is in %q", err)
		}
	}
}

// A zone means something on this machine only.
func TestZoneIsDialledAndNotSent(t *testing.T) {
	if u, _ := Parse("http://[fe80::1%25eth0]:1"); u.Addr() != "[fe80::1%eth0]:1" || u.Authority() != "[fe80::1]:1" {
		t.Errorf("%q %q", u.Addr(), u.Authority())
	}
}

// FuzzParse: what is taken has one spelling, can be asked, and cannot break a head.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"http://a", "http://[::1]:80/x/", "https://A:443", "http://u:p@h", "http://[fe80::1%25e]", "://", "http://a/%2f", "http://a:1/b/v1", "::1", "a.b:80//", "http://a/%zz"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		u, err := ParseLoose(s)
		if err != nil {
			return
		}
		if again, err := Parse(u.String()); err != nil || again != u {
			t.Fatalf("%q gives %q, which gives %q, %v", s, u, again, err)
		}
		for _, out := range []string{u.String(), u.Addr(), u.Authority()} {
			if !wire.ValidValue(out) || strings.ContainsAny(out, " ?#") {
				t.Fatalf("%q gives %q", s, out)
			}
		}
		if _, err := http.NewRequest(http.MethodGet, u.String(), nil); err != nil {
			t.Fatalf("%q gives %q, which is no URL to ask: %v", s, u, err)
		}
	})
}
