package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/sluice-router/sluice/internal/upstream"
)

var (
	schemeWord = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9+.-]*$`)
	hostWord   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_.])?$`)
	userinfo   = regexp.MustCompile(`//[^/]*@`)
)

// redactURL hides the password of a URL in a message.
func redactURL(s string) string {
	return userinfo.ReplaceAllString(s, "//"+hidden+"@")
}

// CanonicalURL checks the base URL of a worker and returns its one spelling:
// lower-case scheme and host, IPv6 in its short form, no default port, no
// trailing slash, and no "/v1" at the end, which belongs to the paths of requests.
// It is the spelling of [upstream.ParseBaseURL], by which workers are known while
// sluice runs: two URLs mean the same worker when these are equal. The error says
// what is wrong and does not repeat the URL.
func CanonicalURL(raw string) (string, error) {
	if len(raw) > 2048 {
		return "", errors.New("is longer than 2048 bytes")
	}
	if raw == "" {
		return "", errors.New("is empty; write a URL like http://10.0.0.1:30000")
	}
	scheme, rest, ok := strings.Cut(raw, "://")
	if !ok || !schemeWord.MatchString(scheme) {
		return "", errors.New("must begin with http:// or https://")
	}
	scheme = strings.ToLower(scheme)
	switch scheme {
	case "http", "https":
	case "grpc", "grpcs":
		return "", errors.New("must begin with http:// or https://; gRPC is not available yet")
	default:
		return "", errors.New("must begin with http:// or https://")
	}
	for i := range len(rest) {
		switch c := rest[i]; {
		case c >= 0x80:
			return "", errors.New("has a character outside ASCII; write the host name in its xn-- form")
		case c <= ' ' || c == 0x7f || c == '\\':
			return "", errors.New("has a space or another character that a URL cannot hold")
		case c == '?' || c == '#':
			return "", errors.New("must have no query and no fragment")
		}
	}
	authority, path := rest, ""
	if i := strings.IndexByte(rest, '/'); i >= 0 {
		authority, path = rest[:i], rest[i:]
	}
	if strings.Contains(authority, "@") {
		return "", errors.New("must have no user name or password; give the key with api_key")
	}
	host, err := canonicalAuthority(scheme, authority)
	if err != nil {
		return "", err
	}
	if _, err := url.PathUnescape(path); err != nil {
		return "", errors.New("has a wrong % escape in its path")
	}
	base, err := upstream.ParseBaseURL(scheme + "://" + host + path)
	if err != nil {
		return "", fmt.Errorf("cannot be used: %w", errors.Unwrap(err))
	}
	return base.String(), nil
}

// endsInV1 tells whether the path of a URL ends in "/v1", as the base URLs of
// OpenAI's clients do.
func endsInV1(raw string) bool { return strings.HasSuffix(strings.TrimRight(raw, "/"), "/v1") }

func canonicalAuthority(scheme, authority string) (string, error) {
	host, port := authority, ""
	switch {
	case strings.HasPrefix(authority, "["):
		inner, after, ok := strings.Cut(authority[1:], "]")
		if !ok || after != "" && after[0] != ':' {
			return "", errors.New("has an IPv6 address without its closing bracket, or something between that and the port")
		}
		addr, err := netip.ParseAddr(strings.Replace(inner, "%25", "%", 1))
		if err != nil || !addr.Is6() || addr.Zone() != "" && !hostWord.MatchString(addr.Zone()) {
			return "", errors.New("has no IPv6 address in its brackets")
		}
		host, port = "["+strings.Replace(addr.String(), "%", "%25", 1)+"]", after
	case strings.Count(authority, ":") > 1:
		return "", fmt.Errorf("has an IPv6 address without brackets; write it like %s://[::1]:30000", scheme)
	default:
		if i := strings.IndexByte(authority, ':'); i >= 0 {
			host, port = authority[:i], authority[i:]
		}
		if host == "" {
			return "", errors.New("has no host")
		}
		if len(host) > 253 || !hostWord.MatchString(host) {
			return "", errors.New("has a host that is neither a name nor an address")
		}
		host = strings.ToLower(host)
	}
	if port == "" {
		return host, nil
	}
	n, err := strconv.ParseUint(port[1:], 10, 16)
	if err != nil || n == 0 {
		return "", errors.New("must have a port from 1 to 65535 after the colon")
	}
	if scheme == "http" && n == 80 || scheme == "https" && n == 443 {
		return host, nil
	}
	return host + ":" + strconv.FormatUint(n, 10), nil
}
