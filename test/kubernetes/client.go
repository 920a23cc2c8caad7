package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"
)

// Client speaks to one API server as one account.
type Client struct {
	base, token string
	http        *http.Client
}

// object is a Kubernetes object as it is written.
type object = map[string]any

// StatusError is an answer of the API server that is no success.
type StatusError struct {
	Code    int    `json:"code"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

func (e *StatusError) Error() string {
	return fmt.Sprintf("%d %s: %s", e.Code, e.Reason, e.Message)
}

// hasCode says whether err is an answer of that status.
func hasCode(err error, code int) bool {
	var e *StatusError
	return errors.As(err, &e) && e.Code == code
}

// The content types of PATCH.
const (
	mergePatch     = "application/merge-patch+json"
	strategicPatch = "application/strategic-merge-patch+json"
)

// do sends a request and reads the answer into into, which may be nil. body is sent as
// JSON, nil as nothing.
func (c *Client) do(ctx context.Context, method, path, contentType string, body, into any) error {
	resp, err := c.send(ctx, method, path, contentType, body)
	if err != nil {
		return fmt.Errorf("cannot %s %s: %w", method, path, err)
	}
	defer resp.Body.Close()
	if into == nil {
		_, _ = io.Copy(io.Discard, resp.Body) // so that the connection is used again
		return nil
	}
	if err := json.NewDecoder(resp.Body).Decode(into); err != nil {
		return fmt.Errorf("cannot %s %s: %w", method, path, err)
	}
	return nil
}

// send returns a successful answer, whose body the caller closes.
func (c *Client) send(ctx context.Context, method, path, contentType string, body any) (*http.Response, error) {
	var payload io.Reader
	if body != nil {
		b, err := json.Marshal(body)
		if err != nil {
			return nil, err
		}
		payload = bytes.NewReader(b)
	}
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, payload)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Authorization", "Bearer "+c.token)
	req.Header.Set("Accept", "application/json")
	if body != nil {
		if contentType == "" {
			contentType = "application/json"
		}
		req.Header.Set("Content-Type", contentType)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode < 300 {
		return resp, nil
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
	if err != nil {
		return nil, err
	}
	status := &StatusError{}
	if json.Unmarshal(b, status) != nil || status.Code == 0 {
		status = &StatusError{Code: resp.StatusCode, Message: string(b)}
	}
	return nil, status
}

// Create makes an object in the collection at path.
func (c *Client) Create(ctx context.Context, path string, o object) error {
	return c.do(ctx, http.MethodPost, path, "", o, nil)
}

// Patch changes an object.
func (c *Client) Patch(ctx context.Context, path, contentType string, change object) error {
	return c.do(ctx, http.MethodPatch, path, contentType, change, nil)
}

// Delete deletes an object, with a grace period in seconds unless that is negative. uid,
// unless it is "", must be the object's.
func (c *Client) Delete(ctx context.Context, path string, grace int, uid string) error {
	options := object{"apiVersion": "v1", "kind": "DeleteOptions"}
	if grace >= 0 {
		options["gracePeriodSeconds"] = grace
	}
	if uid != "" {
		options["preconditions"] = object{"uid": uid}
	}
	return c.do(ctx, http.MethodDelete, path, "", options, nil)
}

// Token returns a token of a service account that is good for an hour.
func (c *Client) Token(ctx context.Context, namespace, account string) (string, error) {
	var out struct {
		Status struct {
			Token string `json:"token"`
		} `json:"status"`
	}
	path := "/api/v1/namespaces/" + namespace + "/serviceaccounts/" + account + "/token"
	err := c.do(ctx, http.MethodPost, path, "", object{
		"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": object{"expirationSeconds": 3600},
	}, &out)
	return out.Status.Token, err
}

// Event is one of a watch.
type Event struct {
	Type   string          `json:"type"`
	Object json.RawMessage `json:"object"`
}

// Watch calls seen with each event behind a resource version until the watch ends, and
// returns why it did.
func (c *Client) Watch(ctx context.Context, path, version string, seen func(Event) error) error {
	q := url.Values{"watch": {"1"}, "allowWatchBookmarks": {"true"}, "resourceVersion": {version}, "timeoutSeconds": {"300"}}
	resp, err := c.send(ctx, http.MethodGet, path+"?"+q.Encode(), "", nil)
	if err != nil {
		return fmt.Errorf("cannot watch %s: %w", path, err)
	}
	defer resp.Body.Close()
	for in := json.NewDecoder(resp.Body); ; {
		var e Event
		if err := in.Decode(&e); err != nil {
			return fmt.Errorf("the watch of %s ended: %w", path, err)
		}
		if err := seen(e); err != nil {
			return err
		}
	}
}

// retry calls do until it succeeds, returns an error that more tries would not mend, or
// ctx ends. An API server that is down or busy is one that they mend.
func retry(ctx context.Context, do func() error) error {
	for pause := 50 * time.Millisecond; ; pause = min(2*pause, time.Second) {
		err := do()
		var status *StatusError
		if err == nil || errors.As(err, &status) && status.Code < 500 && status.Code != http.StatusTooManyRequests {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(pause):
		}
	}
}
