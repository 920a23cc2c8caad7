package server

import (
	"bytes"
	"errors"
	"io"
	"mime"
	"mime/multipart"
	"net/http"
	"strings"

	"github.com/sluice-router/sluice/internal/openai"
)

// Routes that go to one worker as they are, whatever becomes of prefill and decode.
var passingRoutes = map[string]openai.Route{
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

func passing(api openai.Route, method, pattern string) *route {
	return &route{
		name: api.String(), access: map[string]access{method: client}, allow: []string{method},
		serve: (*request).infer, api: api, passing: true, pattern: pattern,
	}
}

// What an engine keeps of a response. The paths have the response's id in them.
var (
	storedResponse = passing(openai.RouteStoredResponse, http.MethodGet, pathResponses+"/{id}")
	cancelResponse = passing(openai.RouteStoredResponse, http.MethodPost, pathResponses+"/{id}/cancel")
)

// matchResponse is the route of a path below /v1/responses.
func matchResponse(rest string) *route {
	id, verb, more := strings.Cut(rest, "/")
	switch {
	case !goodResponseID(id):
	case !more:
		return storedResponse
	case verb == "cancel":
		return cancelResponse
	}
	return nil
}

// goodResponseID tells whether an id can be part of a path to an engine and lead
// nowhere else.
func goodResponseID(id string) bool {
	for _, c := range []byte(id) {
		if c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return id != "" && len(id) <= 256
}

// peekPassing reads what routing needs of a body that may be none, or a form.
func (q *request) peekPassing(body []byte) (*openai.Peeked, error) {
	if len(body) == 0 && q.r.Method == http.MethodGet {
		return openai.Opaque(q.route.api, body, ""), nil
	}
	kind, params, err := mime.ParseMediaType(q.r.Header.Get(headerContentType))
	if err == nil && kind == "multipart/form-data" {
		model, err := formModel(body, params["boundary"])
		if err != nil {
			return nil, err
		}
		return openai.Opaque(q.route.api, body, model), nil
	}
	if q.route.api == openai.RouteStoredResponse && len(body) == 0 {
		return openai.Opaque(q.route.api, body, ""), nil
	}
	return openai.Peek(q.route.api, body, q.s.peek)
}

const (
	// maxFormParts bounds the parts of a form that are looked through for its model.
	maxFormParts = 64
	// maxFormModel bounds the name of a model in a form, in bytes.
	maxFormModel = 16 << 10
)

// formModel is the field "model" of a form, "" if it has none. The rest of the form
// is the engine's.
func formModel(body []byte, boundary string) (string, error) {
	broken := func(err error) error {
		return openai.InvalidRequest("", "the request body is not a whole multipart form").WithCause(err)
	}
	if boundary == "" {
		return "", broken(nil)
	}
	r := multipart.NewReader(bytes.NewReader(body), boundary)
	for range maxFormParts {
		part, err := r.NextRawPart()
		if errors.Is(err, io.EOF) {
			return "", nil
		}
		if err != nil {
			return "", broken(err)
		}
		if part.FormName() != "model" || part.FileName() != "" {
			continue
		}
		v, err := io.ReadAll(io.LimitReader(part, maxFormModel+1))
		if err != nil {
			return "", broken(err)
		}
		if len(v) > maxFormModel {
			return "", openai.InvalidRequest("model", "model is longer than %d bytes", maxFormModel)
		}
		return string(v), nil
	}
	return "", nil
}
