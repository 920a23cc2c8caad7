package textmodel

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// rendererOf makes a client of a server in this process.
func rendererOf(t *testing.T, timeout time.Duration, h http.HandlerFunc) *Renderer {
	t.Helper()
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	r, err := NewRenderer(server.URL+"/", timeout)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	return r
}

func TestRendererGivesTokens(t *testing.T) {
	r := rendererOf(t, time.Minute, func(w http.ResponseWriter, req *http.Request) {
		body, _ := io.ReadAll(req.Body)
		if string(body) != `{"x":1}` || req.Header.Get("Content-Type") != "application/json" {
			t.Errorf("got %s", body)
		}
		switch req.URL.Path {
		case "/v1/chat/completions/render":
			io.WriteString(w, `{"request_id":"r","token_ids":[1,2,4000000000],"sampling_params":{"temperature":0.5},"features":null}`)
		case "/v1/completions/render":
			io.WriteString(w, `[{"token_ids":[1]},{"token_ids":[2],"features":{"mm_hashes":{}}}]`)
		default:
			t.Errorf("path %s", req.URL.Path)
		}
	})
	chat, err := r.Chat(context.Background(), []byte(`{"x":1}`))
	if err != nil || !slices.Equal(chat.IDs, []uint32{1, 2, 4000000000}) || string(chat.Sampling) != `{"temperature":0.5}` || chat.Features != nil {
		t.Errorf("chat: %+v, %v", chat, err)
	}
	prompts, err := r.Completion(context.Background(), []byte(`{"x":1}`))
	if err != nil || len(prompts) != 2 || prompts[1].IDs[0] != 2 || string(prompts[1].Features) != `{"mm_hashes":{}}` {
		t.Errorf("completion: %+v, %v", prompts, err)
	}
}

func TestRendererErrorsAreTold(t *testing.T) {
	for name, c := range map[string]struct {
		status  int
		body    string
		request bool // the client's fault
		want    string
	}{
		"refused":          {400, `{"error":{"message":"bad role","type":"x","param":"messages","code":400}}`, true, "bad role"},
		"invalid":          {422, `{"detail":"no good"}`, true, "no good"},
		"too large":        {413, ``, true, "Too Large"},
		"unknown model":    {404, `{"error":{"message":"The model x does not exist."}}`, false, "status 404: The model x"},
		"broken":           {500, `oops`, false, "status 500: Internal"},
		"elsewhere":        {302, ``, false, "status 302"},
		"no JSON":          {200, `<html>`, false, "cannot read its answer"},
		"no tokens":        {200, `{"token_ids":[]}`, false, "no tokens"},
		"tokens below 0":   {200, `{"token_ids":[-1]}`, false, "cannot read its answer"},
		"tokens of words":  {200, `{"token_ids":["a"]}`, false, "cannot read its answer"},
		"tokens too large": {200, `{"token_ids":[4294967296]}`, false, "cannot read its answer"},
		"cut off":          {200, `{"token_ids":[1`, false, "cannot read its answer"},
	} {
		r := rendererOf(t, time.Minute, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Location", "/elsewhere")
			w.WriteHeader(c.status)
			io.WriteString(w, c.body)
		})
		_, err := r.Chat(context.Background(), []byte(`{}`))
		var request *RequestError
		var failed *RendererError
		if err == nil || !strings.Contains(err.Error(), c.want) || errors.As(err, &request) != c.request || errors.As(err, &failed) == c.request {
			t.Errorf("%s: got %T %v", name, err, err)
		}
		if failed != nil && failed.Status != c.status {
			t.Errorf("%s: status %d", name, failed.Status)
		}
	}
}

func TestRendererThatIsGone(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	r, err := NewRenderer(server.URL, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	server.Close()
	_, err = r.Chat(context.Background(), []byte(`{}`))
	var failed *RendererError
	if !errors.As(err, &failed) || failed.Status != 0 || failed.Timeout {
		t.Errorf("got %v", err)
	}
}

func TestRendererIsNotWaitedForForEver(t *testing.T) {
	arrived := make(chan struct{}, 2)
	hang := func(_ http.ResponseWriter, req *http.Request) {
		_, _ = io.Copy(io.Discard, req.Body)
		arrived <- struct{}{}
		<-req.Context().Done()
	}
	var failed *RendererError
	_, err := rendererOf(t, 20*time.Millisecond, hang).Chat(context.Background(), []byte(`{}`))
	if !errors.As(err, &failed) || !failed.Timeout {
		t.Errorf("its time limit: got %v", err)
	}
	<-arrived
	left := errors.New("the client left")
	ctx, cancel := context.WithCancelCause(context.Background())
	r := rendererOf(t, time.Hour, hang)
	go func() {
		<-arrived
		cancel(left)
	}()
	if _, err = r.Chat(ctx, []byte(`{}`)); !errors.Is(err, left) {
		t.Errorf("the client leaves: got %v", err)
	}
}

func TestRendererURLs(t *testing.T) {
	for base, ok := range map[string]bool{
		"http://h:1": true, "https://h/prefix/": true, "h:1": false, "ftp://h": false, "http://": false, "http://h?x": false, "http://u:p@h": false, "": false, "http://h:1#x": false,
	} {
		if _, err := NewRenderer(base, time.Second); (err == nil) != ok {
			t.Errorf("%q: %v", base, err)
		}
	}
}
