package dispatch

import (
	"net/http"
	"net/textproto"
	"strings"
)

// Headers by which clients steer sluice. They end here.
const (
	HeaderTargetWorker  = "X-Smg-Target-Worker"
	HeaderTargetDecode  = "X-Sluice-Target-Decode"
	HeaderRoutingKey    = "X-Smg-Routing-Key"
	HeaderDPRank        = "X-Data-Parallel-Rank"
	HeaderRequestID     = "X-Request-Id"
	headerRequestIDA    = "Request-Id" // Anthropic's name for it
	headerAuthorization = "Authorization"
	headerAPIKey        = "X-Api-Key"
)

// requestDrop are the client's headers that are not passed to engines: those of
// the connection, those that sluice writes itself, credentials, and whatever
// could steer an engine past the gate.
var requestDrop = headerSet(
	// of the connection (RFC 9110, section 7.6.1) and of the message's framing
	"Connection", "Keep-Alive", "Proxy-Connection", "Proxy-Authenticate", "Proxy-Authorization",
	"TE", "Trailer", "Transfer-Encoding", "Upgrade", "Expect", "Content-Length", "Host",
	// an engine would compress, and then streams come late
	"Accept-Encoding",
	// written by sluice
	"Content-Type", HeaderRequestID,
	// the client's key is for sluice; see Options.PassAuthorization
	headerAuthorization, headerAPIKey, "Cookie",
	// the way to sluice is not the way to the engine
	"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "X-Forwarded-Port", "X-Real-Ip",
	"Origin", "Referer",
	// engines take these as orders
	HeaderDPRank, "X-Data-Parallel-Host-Port",
)

// requestDropPrefix are families of headers that are internal to routers or
// engines and never taken from clients.
var requestDropPrefix = []string{"X-Smg-", "X-Sluice-", "X-Override-", "X-Sgl-", "X-Prefiller-", "X-Encoder-", "X-Kv-Cache-", "X-Dynamo-"}

func headerSet(names ...string) map[string]struct{} {
	m := make(map[string]struct{}, len(names))
	for _, n := range names {
		m[textproto.CanonicalMIMEHeaderKey(n)] = struct{}{}
	}
	return m
}

// passRequest tells whether a client's header goes to the engine. name is in
// canonical form, as net/http has it.
func passRequest(name string) bool {
	if _, drop := requestDrop[name]; drop {
		return false
	}
	if len(name) > 2 && name[0] == 'X' && name[1] == '-' {
		for _, p := range requestDropPrefix {
			if strings.HasPrefix(name, p) {
				return false
			}
		}
	}
	return true
}

// connectionNamed are the headers that the Connection header makes part of the
// connection; nil in the ordinary case.
func connectionNamed(h http.Header) map[string]bool {
	var named map[string]bool
	for _, line := range h["Connection"] {
		for _, n := range strings.Split(line, ",") {
			n = textproto.CanonicalMIMEHeaderKey(strings.TrimSpace(n))
			if n == "" || n == "Close" || n == "Keep-Alive" {
				continue
			}
			if named == nil {
				named = map[string]bool{}
			}
			named[n] = true
		}
	}
	return named
}

const (
	typeEventStream = "text/event-stream"
	typeJSON        = "application/json"
)

func isEventStream(contentType string) bool {
	return len(contentType) >= len(typeEventStream) && strings.EqualFold(contentType[:len(typeEventStream)], typeEventStream)
}

// isLines tells the forms of streams, other than events, that pass line by line.
func isLines(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	switch strings.ToLower(strings.TrimSpace(mediaType)) {
	case "application/x-ndjson", "application/ndjson", "application/jsonl", "application/x-jsonlines", "application/json-seq":
		return true
	}
	return false
}

func isJSON(contentType string) bool {
	mediaType, _, _ := strings.Cut(contentType, ";")
	return strings.EqualFold(strings.TrimSpace(mediaType), typeJSON)
}
