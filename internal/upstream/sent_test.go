package upstream

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
)

// A caller may give a large request up while a long answer to it goes on.
func TestRequestSentBeforeTheAnswerEnds(t *testing.T) {
	for name, cfg := range map[string]Config{"own": {}, "net/http": {NetHTTP: true}} {
		t.Run(name, func(t *testing.T) {
			over := make(chan struct{})
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if n, err := io.Copy(io.Discard, r.Body); n != 8<<20 || err != nil {
					t.Errorf("the server read %d bytes: %v", n, err)
				}
				_, _ = w.Write([]byte("begun"))
				_ = http.NewResponseController(w).Flush()
				<-over
			}))
			defer srv.Close()
			cfg.URL = srv.URL
			ep, err := NewEndpoint(cfg)
			if err != nil {
				t.Fatal(err)
			}
			defer ep.Close()
			resp, err := ep.Do(t.Context(), &Request{Method: "POST", Path: "/", Body: [][]byte{bytes.Repeat([]byte("x"), 8<<20)}})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := resp.Body.Next(); err != nil {
				t.Fatal(err)
			}
			for !resp.Body.RequestSent() {
				runtime.Gosched() // the writing goroutine has only its own end left
			}
			close(over)
			if _, err := io.ReadAll(resp.Body); err != nil {
				t.Error(err)
			}
			_ = resp.Body.Close()
		})
	}
}
