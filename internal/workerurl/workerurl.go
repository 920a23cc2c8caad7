// Package workerurl has the canonical form of a worker's base URL. Files, flags,
// the API of workers and pins all go through it, so that two spellings of one
// engine are one worker everywhere.
package workerurl

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
)

// MaxLen is the longest URL that is read, in bytes.
const MaxLen = 2048

// URL is a worker's base URL in canonical form: two values are equal exactly when
// they mean the same engine.
type URL struct {
	Scheme string // "http", "https", "grpc" or "grpcs"
	Host   string // lower case; an IP without brackets, its zone after "%"
	Port   string // decimal, never empty
	Path   string // escaped; "", or begins with "/" and does not end with it
}

var (
	schemeWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)
	hostWord   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`)
)

var errScheme = errors.New("must begin with http:// or https://, or with grpc:// or grpcs://")

// Parse reads a worker's base URL. Scheme and host become lower case, addresses
// take their shortest form, the default port and slashes at the end go, and so does
// a final "/v1", which belongs to the paths of requests: "http://Host:80/base/v1/"
// and "http://host/base" are the same engine. Users, queries, fragments, dot
// segments and other schemes are refused. A URL that begins with grpc:// or grpcs:// needs
// a port and has no path.
//
// The error is a predicate that fits after the name of the setting ("must begin with
// http://, …"). It does not repeat the URL, which may hold a password.
func Parse(raw string) (URL, error) {
	if len(raw) > MaxLen {
		return URL{}, fmt.Errorf("is longer than %d bytes", MaxLen)
	}
	if raw == "" {
		return URL{}, errors.New("is empty; write a URL like http://10.0.0.1:30000")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !schemeWord.MatchString(scheme) {
		return URL{}, errScheme
	}
	u := URL{Scheme: strings.ToLower(scheme)}
	switch u.Scheme {
	case "http", "https":
	case "grpc", "grpcs":
	default:
		return URL{}, errScheme
	}
	for i := range len(rest) {
		switch c := rest[i]; {
		case c >= 0x80:
			return URL{}, errors.New("has a character outside ASCII; write the host name in its xn-- form")
		case c <= ' ' || c == 0x7f || c == '\\':
			return URL{}, errors.New("has a space or another character that a URL cannot hold")
		case c == '?' || c == '#':
			return URL{}, errors.New("must have no query and no fragment")
		}
	}
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.Contains(authority, "@") {
		return URL{}, errors.New("must have no user name or password; give the key with api_key")
	}
	if err := u.setAuthority(authority); err != nil {
		return URL{}, err
	}
	if err := u.setPath(path); err != nil {
		return URL{}, err
	}
	return u, nil
}

// ParseLoose reads what a person may write for a worker that is registered already,
// as in a pin: as Parse, but a missing scheme means http, spaces around are ignored,
// and a bare IPv6 address needs no brackets if it has no port.
func ParseLoose(raw string) (URL, error) {
	raw = strings.TrimSpace(raw)
	if a, err := netip.ParseAddr(raw); err == nil && a.Is6() {
		raw = "[" + strings.ReplaceAll(raw, "%", "%25") + "]"
	}
	if raw != "" && !strings.Contains(raw, "://") {
		raw = "http://" + raw
	}
	return Parse(raw)
}

// EndsInV1 tells whether the path of a URL ends in "/v1", as the base URLs of
// OpenAI's clients do. Parse drops it.
func EndsInV1(raw string) bool { return strings.HasSuffix(strings.TrimRight(raw, "/"), "/v1") }

// IsHostName tells whether s is made as a host name is. It has no port.
func IsHostName(s string) bool { return len(s) <= 253 && hostWord.MatchString(s) }

func (u *URL) setAuthority(authority string) error {
	host, port := authority, ""
	if strings.HasPrefix(authority, "[") {
		inner, after, ok := strings.Cut(authority[1:], "]")
		if !ok || after != "" && after[0] != ':' {
			return errors.New("has an IPv6 address without its closing bracket, or something between that and the port")
		}
		addr, err := netip.ParseAddr(strings.Replace(inner, "%25", "%", 1))
		if err != nil || !addr.Is6() || addr.Zone() != "" && !hostWord.MatchString(addr.Zone()) {
			return errors.New("has no IPv6 address in its brackets")
		}
		u.Host, port = addr.String(), after
	} else {
		if strings.Count(authority, ":") > 1 {
			return fmt.Errorf("has an IPv6 address without brackets; write it like %s://[::1]:30000", u.Scheme)
		}
		if i := strings.IndexByte(authority, ':'); i >= 0 {
			host, port = authority[:i], authority[i:]
		}
		if host == "" {
			return errors.New("has no host")
		}
		if !IsHostName(host) || strings.Contains(host, "..") {
			return errors.New("has a host that is neither a name nor an address")
		}
		u.Host = strings.TrimSuffix(strings.ToLower(host), ".")
	}
	if port == "" {
		if u.GRPC() {
			return fmt.Errorf("must have a port; write it like %s://host:50051", u.Scheme)
		}
		u.Port = defaultPort(u.Scheme)
		return nil
	}
	n, err := strconv.ParseUint(port[1:], 10, 16)
	if err != nil || n == 0 {
		return errors.New("must have a port from 1 to 65535 after the colon")
	}
	u.Port = strconv.FormatUint(n, 10)
	return nil
}

func (u *URL) setPath(path string) error {
	parsed, err := url.Parse("http://host" + path) // a path that begins with // would be a host
	if err != nil {
		return errors.New("has a wrong % escape in its path")
	}
	p := strings.TrimRight(parsed.EscapedPath(), "/")
	for strings.HasSuffix(p, "/v1") {
		p = strings.TrimRight(strings.TrimSuffix(p, "/v1"), "/")
	}
	for seg := range strings.SplitSeq(p, "/") {
		if seg == "." || seg == ".." {
			return errors.New("has a dot segment in its path")
		}
	}
	if u.GRPC() && p != "" {
		return errors.New("must have no path: the methods of gRPC have none in front of them")
	}
	u.Path = p
	return nil
}

// defaultPort is empty where the port is always written.
func defaultPort(scheme string) string {
	switch scheme {
	case "http":
		return "80"
	case "https":
		return "443"
	}
	return ""
}

// GRPC tells whether the engine speaks gRPC.
func (u URL) GRPC() bool { return u.Scheme == "grpc" || u.Scheme == "grpcs" }

// Secure tells whether the engine is reached by TLS.
func (u URL) Secure() bool { return u.Scheme == "https" || u.Scheme == "grpcs" }

// Addr is the address to dial, host and port.
func (u URL) Addr() string { return net.JoinHostPort(u.Host, u.Port) }

// Authority is the value of the Host header: without the default port, and without a
// zone, which means something on this machine only.
func (u URL) Authority() string {
	h := u.Host
	if i := strings.IndexByte(h, '%'); i >= 0 {
		h = h[:i]
	}
	return u.withPort(h)
}

func (u URL) withPort(h string) string {
	if u.Port != defaultPort(u.Scheme) {
		return net.JoinHostPort(h, u.Port)
	}
	if strings.Contains(h, ":") {
		return "[" + h + "]"
	}
	return h
}

// String is the canonical spelling. Parse reads it back to an equal value.
func (u URL) String() string {
	return u.Scheme + "://" + u.withPort(strings.ReplaceAll(u.Host, "%", "%25")) + u.Path
}
