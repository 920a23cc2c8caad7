package upstream

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
)

// BaseURL is where an engine is reached, in its one canonical spelling: equal
// engines have equal values.
type BaseURL struct {
	Scheme string // "http" or "https"
	Host   string // lower case; an IP without brackets, a zone behind "%"
	Port   string // decimal, never empty
	Path   string // escaped, "" or begins with "/" and does not end with it
}

// ParseBaseURL reads an engine's URL. A missing scheme means http; a bare IPv6
// address may lack its brackets if it has no port. Scheme and host become lower
// case, addresses their shortest form, trailing slashes go, and so does a final
// "/v1", which belongs to the requests' paths: "http://Host:80/base/v1/" and
// "host/base" are the same engine. User, query, fragment, dot segments and other
// schemes are refused.
func ParseBaseURL(s string) (BaseURL, error) {
	b, err := parseBaseURL(strings.TrimSpace(s))
	if err != nil {
		return BaseURL{}, fmt.Errorf("cannot use %q as an engine's URL: %w", redact(s), err)
	}
	return b, nil
}

func parseBaseURL(s string) (BaseURL, error) {
	if s == "" {
		return BaseURL{}, errors.New("it is empty")
	}
	if a, err := netip.ParseAddr(s); err == nil && a.Is6() {
		s = "http://[" + strings.ReplaceAll(s, "%", "%25") + "]"
	} else if !strings.Contains(s, "://") {
		s = "http://" + s
	}
	u, err := url.Parse(s)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err // without the URL, which may hold a password
		}
		return BaseURL{}, err
	}
	b := BaseURL{Scheme: strings.ToLower(u.Scheme)}
	switch {
	case b.Scheme != "http" && b.Scheme != "https":
		return b, fmt.Errorf("scheme %q is neither http nor https", u.Scheme)
	case u.User != nil:
		return b, errors.New("a user or password is not allowed; use the worker key")
	case u.RawQuery != "" || u.ForceQuery:
		return b, errors.New("a query is not allowed")
	case strings.Contains(s, "#"):
		return b, errors.New("a fragment is not allowed")
	}
	if b.Host, err = canonicalHost(u.Hostname()); err != nil {
		return b, err
	}
	if b.Port, err = canonicalPort(u.Port(), b.Scheme); err != nil {
		return b, err
	}
	b.Path, err = canonicalPath(u)
	return b, err
}

func canonicalHost(h string) (string, error) {
	if h == "" {
		return "", errors.New("the host is missing")
	}
	if a, err := netip.ParseAddr(h); err == nil {
		if z := a.Zone(); z != "" && !validName(strings.ToLower(z)) {
			return "", fmt.Errorf("the address has the zone %q", z)
		}
		return a.String(), nil
	}
	if strings.Contains(h, ":") {
		return "", fmt.Errorf("%q is no IPv6 address", h)
	}
	h = strings.TrimSuffix(strings.ToLower(h), ".")
	if h == "" || len(h) > 253 {
		return "", errors.New("the host name has no valid length")
	}
	if !validName(h) || strings.HasPrefix(h, ".") || strings.HasSuffix(h, ".") || strings.Contains(h, "..") {
		return "", fmt.Errorf("%q is no host name", h)
	}
	return h, nil
}

// validName tells whether s, in lower case, holds only what host names and network
// interfaces are made of.
func validName(s string) bool {
	for i := 0; i < len(s); i++ {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_') {
			return false
		}
	}
	return true
}

func canonicalPort(p, scheme string) (string, error) {
	if p == "" {
		if scheme == "https" {
			return "443", nil
		}
		return "80", nil
	}
	n, err := strconv.ParseUint(p, 10, 16)
	if err != nil || n == 0 {
		return "", fmt.Errorf("port %q is not between 1 and 65535", p)
	}
	return strconv.FormatUint(n, 10), nil
}

func canonicalPath(u *url.URL) (string, error) {
	p := strings.TrimRight(u.EscapedPath(), "/")
	for strings.HasSuffix(p, "/v1") {
		p = strings.TrimRight(strings.TrimSuffix(p, "/v1"), "/")
	}
	for seg := range strings.SplitSeq(p, "/") {
		if seg == "." || seg == ".." {
			return "", errors.New("the path has a dot segment")
		}
	}
	return p, nil
}

// redact hides what may be a password in a URL that could not be read.
func redact(s string) string {
	i := strings.Index(s, "://")
	at := strings.LastIndexByte(s, '@')
	if at < 0 {
		return s
	}
	if i < 0 || i > at {
		return "…" + s[at:]
	}
	return s[:i+3] + "…" + s[at:]
}

// Addr is the address to dial, host and port.
func (b BaseURL) Addr() string { return net.JoinHostPort(b.Host, b.Port) }

// authority is the value of the Host header: without the default port, without a
// zone, which means something on this machine only.
func (b BaseURL) authority() string {
	h := b.Host
	if i := strings.IndexByte(h, '%'); i >= 0 {
		h = h[:i]
	}
	return b.withPort(h)
}

func (b BaseURL) withPort(h string) string {
	if b.Scheme == "http" && b.Port == "80" || b.Scheme == "https" && b.Port == "443" {
		if strings.Contains(h, ":") {
			return "[" + h + "]"
		}
		return h
	}
	return net.JoinHostPort(h, b.Port)
}

// String is the canonical spelling, fit for comparing, for metrics and for
// ParseBaseURL.
func (b BaseURL) String() string {
	return b.Scheme + "://" + b.withPort(strings.ReplaceAll(b.Host, "%", "%25")) + b.Path
}
