package textmodel

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"

	"github.com/sluice-router/sluice/internal/text"
)

// Renderer asks another server for the tokens of a request: `vllm launch render`, for models that this program cannot render, and for prompts with media.
// It is safe for concurrent use.
type Renderer struct {
	base    string
	client  *http.Client
	timeout time.Duration
}

// Rendered is a prompt as a renderer gives it.
type Rendered struct {
	IDs []uint32
	// Sampling are the parameters of sampling as the renderer resolved them, in vLLM's form; Features what engines need of media. Both are JSON, or nil.
	Sampling, Features jsontext.Value
}

// RendererError is a renderer that could not be asked or did not answer as it should. The request is not at fault.
type RendererError struct {
	Status  int  // of its answer; 0: there was none
	Timeout bool // it took too long
	Err     error
}

func (e *RendererError) Error() string { return "the renderer failed: " + e.Err.Error() }

func (e *RendererError) Unwrap() error { return e.Err }

// Bounds of a renderer's answer. A prompt of a million tokens has less than 10 MB; features carry pixels.
const (
	maxRenderedBytes = 256 << 20
	maxRendered      = 1024 // prompts of one request
	renderDials      = 256  // connections
)

// NewRenderer makes a client of the renderer at a URL such as http://host:port; timeout bounds each request.
func NewRenderer(base string, timeout time.Duration) (*Renderer, error) {
	u, err := url.Parse(base)
	if err != nil {
		return nil, err
	}
	if u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.RawQuery != "" || u.Fragment != "" || u.User != nil {
		return nil, fmt.Errorf("the renderer's URL %q must be like http://host:port", base)
	}
	transport := &http.Transport{
		MaxIdleConnsPerHost: 16, MaxConnsPerHost: renderDials, IdleConnTimeout: 30 * time.Second, DisableCompression: true,
		TLSHandshakeTimeout: 10 * time.Second, MaxResponseHeaderBytes: 64 << 10,
	}
	client := &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return &Renderer{base: strings.TrimRight(u.String(), "/"), client: client, timeout: timeout}, nil
}

// Close ends the connections that nothing uses.
func (r *Renderer) Close() { r.client.CloseIdleConnections() }

// Chat renders the body of a chat request. Its errors are a *RequestError, a *RendererError, and the error of ctx.
func (r *Renderer) Chat(ctx context.Context, body []byte) (*Rendered, error) {
	data, err := r.post(ctx, "/v1/chat/completions/render", body)
	if err != nil {
		return nil, err
	}
	var answer rendered
	if err := json.Unmarshal(data, &answer, jsontext.AllowDuplicateNames(true)); err != nil {
		return nil, &RendererError{Status: http.StatusOK, Err: fmt.Errorf("cannot read its answer: %w", err)}
	}
	return answer.check()
}

// Completion renders the body of a completions request: one result for each prompt. Its errors are those of Chat.
func (r *Renderer) Completion(ctx context.Context, body []byte) ([]*Rendered, error) {
	data, err := r.post(ctx, "/v1/completions/render", body)
	if err != nil {
		return nil, err
	}
	var answers []rendered
	if err := json.Unmarshal(data, &answers, jsontext.AllowDuplicateNames(true)); err != nil {
		return nil, &RendererError{Status: http.StatusOK, Err: fmt.Errorf("cannot read its answer: %w", err)}
	}
	if len(answers) == 0 || len(answers) > maxRendered {
		return nil, &RendererError{Status: http.StatusOK, Err: fmt.Errorf("its answer has %d prompts", len(answers))}
	}
	all := make([]*Rendered, len(answers))
	for i := range answers {
		if all[i], err = answers[i].check(); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// rendered is one prompt of an answer.
type rendered struct {
	IDs      []uint32       `json:"token_ids"`
	Sampling jsontext.Value `json:"sampling_params"`
	Features jsontext.Value `json:"features"`
}

func (a *rendered) check() (*Rendered, error) {
	if len(a.IDs) == 0 {
		return nil, &RendererError{Status: http.StatusOK, Err: errors.New("its answer has no tokens")}
	}
	r := &Rendered{IDs: a.IDs}
	if a.Sampling.Kind() == '{' {
		r.Sampling = a.Sampling
	}
	if a.Features.Kind() == '{' {
		r.Features = a.Features
	}
	return r, nil
}

// post sends a body and gives the body of a good answer.
func (r *Renderer) post(ctx context.Context, path string, body []byte) ([]byte, error) {
	bounded, cancel := context.WithTimeout(ctx, r.timeout)
	defer cancel()
	failed := func(status int, err error) error {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return &RendererError{Status: status, Timeout: bounded.Err() != nil, Err: err}
	}
	req, err := http.NewRequestWithContext(bounded, http.MethodPost, r.base+path, bytes.NewReader(body))
	if err != nil {
		return nil, failed(0, err)
	}
	req.Header.Set("Content-Type", "application/json")
	resp, err := r.client.Do(req)
	if err != nil {
		return nil, failed(0, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode == http.StatusOK {
		data, err := readAtMost(resp.Body, maxRenderedBytes)
		if err != nil {
			return nil, failed(resp.StatusCode, err)
		}
		return data, nil
	}
	data, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	if err != nil {
		return nil, failed(resp.StatusCode, err)
	}
	message, param := errorOf(data)
	if message == "" {
		message = http.StatusText(resp.StatusCode)
	}
	switch resp.StatusCode {
	case http.StatusBadRequest, http.StatusUnprocessableEntity, http.StatusRequestEntityTooLarge:
		return nil, &RequestError{Message: message, Param: param}
	}
	return nil, failed(resp.StatusCode, fmt.Errorf("status %d: %s", resp.StatusCode, message))
}

// errorOf is the message of an error in the form of OpenAI's API, or of FastAPI.
func errorOf(data []byte) (message, param string) {
	var answer struct {
		Error struct {
			Message string         `json:"message"`
			Param   jsontext.Value `json:"param"`
		} `json:"error"`
		Detail jsontext.Value `json:"detail"`
	}
	if json.Unmarshal(data, &answer, jsontext.AllowDuplicateNames(true), jsontext.AllowInvalidUTF8(true)) != nil {
		return "", ""
	}
	if answer.Error.Param.Kind() == '"' {
		_ = json.Unmarshal(answer.Error.Param, &param) // a string, as its kind says
	}
	message = answer.Error.Message
	if message == "" && answer.Detail.Kind() == '"' {
		_ = json.Unmarshal(answer.Detail, &message) // likewise
	}
	return text.Clip(message, 1000), param
}
