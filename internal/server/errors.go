package server

import (
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
)

// Reasons of requests that end here, as they appear in the access log and as
// metric labels. They are a closed set.
const (
	reasonOK            = "ok"
	reasonClientGone    = "client_gone"
	reasonDraining      = "draining"
	reasonBadRequest    = "invalid_request"
	reasonBadKey        = "invalid_api_key"
	reasonForbidden     = "forbidden"
	reasonTooLarge      = "request_too_large"
	reasonBufferFull    = "buffer_full"
	reasonBodyTimeout   = "request_timeout"
	reasonEncoding      = "unsupported_encoding"
	reasonNoRoute       = "route_not_found"
	reasonMethod        = "method_not_allowed"
	reasonNoWorker      = "worker_not_found"
	reasonWorkerLeaving = "worker_leaving"
	reasonNoModel       = "model_not_found"
	reasonNoCluster     = "no_cluster"
	reasonClusterState  = "cluster_state"
	reasonTooManyFiles  = "too_many_connections"
	reasonInternal      = "internal_error"
	reasonNotReady      = "not_ready"
	reasonEngineStatus  = "engine_status" // of dispatch
	typeInvalidRequest  = "invalid_request_error"
	typeServerError     = "server_error"
	codeMethod          = "method_not_allowed"
	codeForbidden       = "forbidden"
	codeWorkerNotFound  = "worker_not_found"
	codeWorkerLeaving   = "worker_leaving"
	codeEncoding        = "unsupported_encoding"
	codeNoCluster       = "no_cluster"
	codeClusterState    = "cluster_state"
	codeMemberNotFound  = "member_not_found"
	codeBodyTimeout     = "request_timeout"
	codeTooManyFiles    = "too_many_connections"
	tooManyRetryAfter   = time.Second
	headerRequestID     = "X-Request-Id"
	headerRequestIDA    = "Request-Id" // Anthropic's name for it
	headerConnection    = "Connection"
	contentTypeJSON     = "application/json"
	contentTypeText     = "text/plain; charset=utf-8"
	headerContentType   = "Content-Type"
	headerContentLength = "Content-Length"
)

func methodNotAllowed(method, path string, allow []string) *openai.Error {
	return &openai.Error{Status: http.StatusMethodNotAllowed, Type: typeInvalidRequest, Code: codeMethod,
		Message: fmt.Sprintf("%s is not a method of %s; use %s", text.Line(method), path, strings.Join(allow, " or "))}
}

func forbidden(why string) *openai.Error {
	return &openai.Error{Status: http.StatusForbidden, Type: typeInvalidRequest, Code: codeForbidden, Message: why}
}

// adminKeyRequired is the same for every wrong key, so that it does not reveal whether
// a key is a client's.
func adminKeyRequired() *openai.Error {
	e := openai.InvalidAPIKey()
	e.Message = "this route needs the admin key (--admin-api-key), and it is missing or wrong; send it as \"Authorization: Bearer KEY\""
	return e
}

// anyKeyRequired is for routes that take a client's key or the admin key.
func anyKeyRequired() *openai.Error {
	e := openai.InvalidAPIKey()
	e.Message = "this route needs a client's API key (--api-key) or the admin key (--admin-api-key), and it is missing or wrong; send it as \"Authorization: Bearer KEY\""
	return e
}

func workerNotFound(id string) *openai.Error {
	return &openai.Error{Status: http.StatusNotFound, Type: typeInvalidRequest, Code: codeWorkerNotFound,
		Message: fmt.Sprintf("there is no worker %q; GET /workers lists those there are", text.Line(id))}
}

func workerLeaving(id string) *openai.Error {
	return &openai.Error{Status: http.StatusConflict, Type: typeInvalidRequest, Code: codeWorkerLeaving,
		Message: fmt.Sprintf("the worker %q is being removed; register it again with PUT or POST /workers", text.Line(id))}
}

func unsupportedEncoding(encoding string) *openai.Error {
	return &openai.Error{Status: http.StatusUnsupportedMediaType, Type: typeInvalidRequest, Code: codeEncoding,
		Message: fmt.Sprintf("the request body has the Content-Encoding %q; send it without one", text.Line(encoding))}
}

func bodyTimeout(limit time.Duration) *openai.Error {
	return &openai.Error{Status: http.StatusRequestTimeout, Type: typeInvalidRequest, Code: codeBodyTimeout,
		Message: fmt.Sprintf("nothing of the request body came for %s (--client-body-timeout-secs)", limit)}
}

func bodyTotalTimeout(limit time.Duration) *openai.Error {
	return &openai.Error{Status: http.StatusRequestTimeout, Type: typeInvalidRequest, Code: codeBodyTimeout,
		Message: fmt.Sprintf("the request body took longer than %s (--request-timeout-secs)", limit)}
}

func tooManyFiles() *openai.Error {
	return &openai.Error{Status: http.StatusServiceUnavailable, Type: typeServerError, Code: codeTooManyFiles, RetryAfter: tooManyRetryAfter,
		Message: "the router has almost as many connections as the system lets it have (ulimit -n); try again shortly"}
}

// bodyEvicted is the answer to a client whose connection was evicted while the router
// waited for the request body.
func bodyEvicted() *openai.Error {
	e := tooManyFiles()
	e.Message = "the router has almost as many connections as the system lets it have (ulimit -n), and the request body did not come on; try again shortly"
	return e
}
