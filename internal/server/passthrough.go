package server

import (
	"net/http"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
)

// Pass-through routes: requests go unchanged to one worker, also where prefill and decode
// are separate.
var passthroughRoutes = map[string]openai.Route{
	"/v1/embeddings":            openai.RouteEmbeddings,
	"/tokenize":                 openai.RouteTokenize,
	"/v1/tokenize":              openai.RouteTokenize,
	"/detokenize":               openai.RouteDetokenize,
	"/v1/detokenize":            openai.RouteDetokenize,
	"/rerank":                   openai.RouteRerank,
	"/v1/rerank":                openai.RouteRerank,
	"/v2/rerank":                openai.RouteRerank,
	"/score":                    openai.RouteScore,
	"/v1/score":                 openai.RouteScore,
	"/classify":                 openai.RouteClassify,
	"/v1/classify":              openai.RouteClassify,
	"/pooling":                  openai.RoutePooling,
	"/v1/messages/count_tokens": openai.RouteCountTokens,
	"/v1/audio/transcriptions":  openai.RouteAudio,
	"/v1/audio/translations":    openai.RouteAudio,
}

func passthroughRoute(api openai.Route, method, pattern string) *route {
	return &route{
		name: api.String(), access: map[string]access{method: client}, allow: []string{method},
		serve: (*request).infer, api: api, passthrough: true, pattern: pattern,
	}
}

// Routes for responses that an engine stores. The paths contain the response's id.
var (
	storedResponse = passthroughRoute(openai.RouteStoredResponse, http.MethodGet, pathResponses+"/{id}")
	cancelResponse = passthroughRoute(openai.RouteStoredResponse, http.MethodPost, pathResponses+"/{id}/cancel")
)

// matchResponse is the route of a path below /v1/responses.
func matchResponse(rest string) *route {
	id, verb, more := strings.Cut(rest, "/")
	switch {
	case !goodResponseID(id), id == "input_tokens", id == "compact": // these are routes of the API
	case !more:
		return storedResponse
	case verb == "cancel":
		return cancelResponse
	}
	return nil
}

// goodResponseID reports whether an id can be part of a path to an engine without
// changing which route the path names.
func goodResponseID(id string) bool {
	for _, c := range []byte(id) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return id != "" && len(id) <= 256
}

// peekPassthrough reads what routing needs from a body that may be empty or a form. Forms
// are accepted for the audio API only: on other routes engines parse them differently.
func (q *request) peekPassthrough(body []byte) (*openai.Peeked, error) {
	if len(body) == 0 && (q.r.Method == http.MethodGet || q.route.api == openai.RouteStoredResponse) {
		q.call.NoBody = true
		return openai.Opaque(q.route.api, body, ""), nil
	}
	types := q.r.Header[headerContentType]
	if len(types) > 1 {
		return nil, openai.InvalidRequest("", "the header Content-Type is given twice; send it once")
	}
	if len(types) == 0 || !openai.IsMultipart(types[0]) {
		return openai.Peek(q.route.api, body, q.s.peek)
	}
	if q.route.api != openai.RouteAudio {
		return nil, openai.UnsupportedMediaType("the request body is a form; this route takes JSON (forms are for /v1/audio/*)")
	}
	refuse := q.s.peek.Refuse
	if refuse != 0 {
		refuse = refuse.With(openai.FieldNVExt) // it asks for extra fields in the answer, which an answer to a form does not have
	}
	q.call.Form = true
	return openai.PeekForm(q.route.api, types[0], body, refuse)
}
