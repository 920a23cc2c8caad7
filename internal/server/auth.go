package server

import (
	"crypto/sha256"
	"crypto/subtle"
	"math/rand/v2"
	"net"
	"net/http"
	"net/netip"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/openai"
)

// keySet is a set of keys of which the client must send one. They are stored and
// compared as hashes, so that timing reveals neither their length nor their beginning.
type keySet []keyEntry

type keyEntry struct {
	sum  [sha256.Size]byte
	name string // empty: it has none
	used prometheus.Counter
}

// keyring is the keys in force, which a reload replaces as a whole. Running requests are
// not affected.
type keyring struct{ clients, admins keySet }

// Reload puts the keys of a configuration in force. The rest of it needs a restart.
func (s *Server) Reload(cfg *config.Config) {
	names, admin := cfg.KeyNames, cfg.Auth.AdminAPIKey
	ring := &keyring{}
	inUse := map[string]bool{}
	for i, k := range cfg.Auth.APIKeys {
		if k == "" {
			continue
		}
		e := keyEntry{sum: sha256.Sum256([]byte(k))}
		if i < len(names) && names[i] != "" {
			e.name = names[i]
			e.used = s.keyUses.WithLabelValues(e.name)
			inUse[e.name] = true
		}
		ring.clients = append(ring.clients, e)
	}
	if admin != "" {
		ring.admins = keySet{{sum: sha256.Sum256([]byte(admin))}}
	}
	if old := s.keys.Swap(ring); old != nil {
		for _, e := range old.clients {
			if e.name != "" && !inUse[e.name] {
				s.keyUses.DeleteLabelValues(e.name)
			}
		}
	}
}

// find is the entry of a key, nil if it is none of them.
func (s keySet) find(key string) *keyEntry {
	sum := sha256.Sum256([]byte(key))
	at := -1
	for i := range s {
		at = subtle.ConstantTimeSelect(subtle.ConstantTimeCompare(sum[:], s[i].sum[:]), i, at)
	}
	if at < 0 {
		return nil
	}
	return &s[at]
}

func (s keySet) has(key string) bool { return s.find(key) != nil }

// bearer is the key a request presents, or "".
func bearer(h http.Header) string {
	values := h["Authorization"]
	if len(values) != 1 {
		return ""
	}
	const scheme = "bearer "
	v := values[0]
	if len(v) < len(scheme) || !strings.EqualFold(v[:len(scheme)], scheme) {
		return ""
	}
	return strings.TrimSpace(v[len(scheme):])
}

// presented is the entry of the key that a request carries, as a bearer token or as
// x-api-key (OpenAI's and Anthropic's clients); nil if the set does not have it.
func (s keySet) presented(h http.Header) *keyEntry {
	if e := s.find(bearer(h)); e != nil {
		return e
	}
	if values := h["X-Api-Key"]; len(values) == 1 {
		return s.find(strings.TrimSpace(values[0]))
	}
	return nil
}

// access is the permission that a route requires.
type access uint8

const (
	open     access = iota // probes: anybody
	client                 // clients with an API key, if any is configured
	readOnly               // the same, or the admin key
	admin                  // the admin key; if none is configured, clients on this machine
)

// authorize returns why the request may not go on, or nil.
func (q *request) authorize(a access) (*openai.Error, string) {
	s, r := q.s, q.r
	keys := s.keys.Load()
	switch a {
	case open:
		return nil, ""
	case admin:
		return keys.authorizeAdmin(r)
	}
	if len(keys.clients) == 0 {
		return nil, ""
	}
	if e := keys.clients.presented(r.Header); e != nil {
		if e.name != "" {
			q.key = e.name
			e.used.Inc()
		}
		return nil, ""
	}
	if a == readOnly {
		if keys.admins.has(bearer(r.Header)) {
			return nil, ""
		}
		return anyKeyRequired(), reasonBadKey
	}
	return openai.InvalidAPIKey(), reasonBadKey
}

// authorizeAdmin guards routes that change the fleet. Without an admin key only clients
// on this machine may use them, judged by the connection and not by the request's
// headers. Browsers and proxies on this machine are refused: they send requests on behalf
// of web pages and of remote clients.
func (k *keyring) authorizeAdmin(r *http.Request) (*openai.Error, string) {
	if len(k.admins) > 0 {
		if k.admins.has(bearer(r.Header)) {
			return nil, ""
		}
		return adminKeyRequired(), reasonBadKey
	}
	if !isLoopback(r.RemoteAddr) {
		return forbidden("this route changes the fleet: without --admin-api-key it answers on the loopback interface only"), reasonForbidden
	}
	// A proxy that adds no header can still be recognised: it speaks HTTP/1.0, as nginx
	// does by default, or forwards the Host that its client used.
	if r.ProtoMinor == 0 && r.ProtoMajor == 1 {
		return forbidden("this route changes the fleet: without --admin-api-key it does not answer HTTP/1.0, which proxies speak"), reasonForbidden
	}
	if !isLoopbackName(r.Host) {
		return forbidden("this route changes the fleet: without --admin-api-key it answers requests to localhost or 127.0.0.1 only, not by another name of this machine (the header Host)"), reasonForbidden
	}
	for name := range r.Header {
		if proxyOrBrowserHeader(name) {
			return forbidden("this route changes the fleet: without --admin-api-key it answers neither web pages nor proxies (the request has the header " + name + ")"), reasonForbidden
		}
	}
	if len(k.clients) > 0 && !k.clients.has(bearer(r.Header)) {
		return openai.InvalidAPIKey(), reasonBadKey
	}
	return nil, ""
}

func isLoopback(remoteAddr string) bool {
	host, _, err := net.SplitHostPort(remoteAddr)
	if err != nil {
		return false
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.Unmap().IsLoopback()
}

// isLoopbackName reports whether a Host header, with a port or without, is a name or
// address of the loopback interface.
func isLoopbackName(host string) bool {
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	host = strings.TrimSuffix(strings.ToLower(host), ".")
	if host == "localhost" || strings.HasSuffix(host, ".localhost") {
		return true
	}
	ip, err := netip.ParseAddr(strings.Trim(host, "[]"))
	return err == nil && ip.Unmap().IsLoopback()
}

// maxRequestID is the longest request id taken from a client, in bytes.
const maxRequestID = 128

// requestID is the client's id if it gave exactly one that is 1–128 visible
// ASCII characters, else a new one.
func requestID(h http.Header) string {
	if v := h[headerRequestID]; len(v) == 1 && goodRequestID(v[0]) {
		return v[0]
	}
	return newRequestID()
}

// newRequestID returns a unique id: 130 random bits in base 32. It is not a secret.
func newRequestID() string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	var b [26]byte
	a, c := rand.Uint64(), rand.Uint64()
	for i := range b {
		if i == len(b)/2 {
			a = c
		}
		b[i] = alphabet[a&31]
		a >>= 5
	}
	return string(b[:])
}

func goodRequestID(id string) bool {
	if id == "" || len(id) > maxRequestID {
		return false
	}
	for i := range len(id) {
		if id[i] <= ' ' || id[i] > '~' {
			return false
		}
	}
	return true
}

// proxyOrBrowserHeader reports whether a header, in canonical form, is one that browsers
// or proxies add.
func proxyOrBrowserHeader(name string) bool {
	switch name {
	case "Origin", "Forwarded", "Via", "X-Real-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "X-Client-Ip", "Sec-Fetch-Site":
		return true
	}
	return strings.HasPrefix(name, "X-Forwarded-")
}
