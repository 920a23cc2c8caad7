package config

import (
	"fmt"
	"testing"

	"github.com/sluice-router/sluice/internal/upstream"
)

// TestCase_B136_OneSpellingOfIPv6 keeps away worker URLs that are invalid for
// IPv6 addresses: they are bracketed, in one form, and a bare one is refused
// with the right spelling.
func TestCase_B136_OneSpellingOfIPv6(t *testing.T) {
	checkURLs(t, [][2]string{
		{"http://[::1]:30000", "http://[::1]:30000"},
		{"http://[2001:DB8:0:0::1]:80/", "http://[2001:db8::1]"},
		{"http://[fe80::1%25eth0]:1", "http://[fe80::1%25eth0]:1"},
		{"http://::1", "!has an IPv6 address without brackets; write it like http://[::1]:30000"},
		{"https://2001:db8::1", "!has an IPv6 address without brackets; write it like https://[::1]:30000"},
		{"::1", "!must begin with http:// or https://"},
		{"http://[::1", "!has an IPv6 address without its closing bracket, or something between that and the port"},
		{"http://[::1]30000", "!has an IPv6 address without its closing bracket, or something between that and the port"},
		{"http://[1.2.3.4]", "!has no IPv6 address in its brackets"},
		{"http://[]", "!has no IPv6 address in its brackets"},
	})
}

// TestCase_B137_OneWorkerWhateverTheSlash keeps away double slashes and the
// same worker counted twice: slash at the end, case and default port make no
// difference.
func TestCase_B137_OneWorkerWhateverTheSlash(t *testing.T) {
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
	})
}

func TestURLsRefused(t *testing.T) {
	checkURLs(t, [][2]string{
		{"", "!is empty; write a URL like http://10.0.0.1:30000"},
		{"a:30000", "!must begin with http:// or https://"},
		{"//a", "!must begin with http:// or https://"},
		{"ftp://a", "!must begin with http:// or https://"},
		{"grpc://a:1", "!must begin with http:// or https://; gRPC is not available yet"},
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
		got, err := CanonicalURL(tc[0])
		if err != nil {
			got = "!" + err.Error()
		} else if base, err := upstream.ParseBaseURL(tc[0]); err != nil || base.String() != got {
			t.Errorf("the fleet knows %q as %q (%v), want %q", tc[0], base, err, got)
		} else if again, err := CanonicalURL(got); again != got {
			t.Errorf("CanonicalURL(%q) = %q, and of that %q, %v", tc[0], got, again, err)
		}
		if got != tc[1] {
			t.Errorf("CanonicalURL(%q) = %q, want %q", tc[0], got, tc[1])
		}
	}
}

// TestBaseURLOfClients keeps away two workers that replace each other for ever: a
// base URL with and without the /v1 of OpenAI's clients is one engine.
func TestBaseURLOfClients(t *testing.T) {
	c, warnings, err := Load(words("--worker-urls http://a:1/v1 http://b:1"), nil, nil)
	want := "[flag --worker-urls: workers[0].url: ends in /v1, which belongs to the paths of requests; http://a:1 is taken as the engine's base URL]"
	if err != nil || fmt.Sprint(warnings) != want || c.Workers[0].URL != "http://a:1" {
		t.Errorf("%v, warnings %v, want %s", err, warnings, want)
	}
	if _, _, err := Load(words("--worker-urls http://a:1/v1 http://a:1"), nil, nil); err == nil {
		t.Error("http://a:1/v1 and http://a:1 pass for two workers")
	}
}

func FuzzCanonicalURL(f *testing.F) {
	for _, s := range []string{"http://a", "http://[::1]:80/x/", "https://A:443", "http://u:p@h", "http://[fe80::1%25e]", "://", "http://a/%2f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got, err := CanonicalURL(s)
		if err != nil {
			return
		}
		if again, err := CanonicalURL(got); err != nil || again != got {
			t.Errorf("CanonicalURL(%q) = %q, and of that %q, %v", s, got, again, err)
		}
		if err := canBeAsked(got); err != nil {
			t.Errorf("CanonicalURL(%q) = %q, which is no URL to ask: %v", s, got, err)
		}
	})
}
