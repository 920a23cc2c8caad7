package upstream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"
)

// patience bounds a wait that should end at once; only a hang reaches it.
const patience = 20 * time.Second

// transports runs f over every way to carry HTTP/1.1.
func transports(t *testing.T, f func(t *testing.T, cfg Config)) {
	t.Helper()
	t.Run("own", func(t *testing.T) { f(t, Config{}) })
	t.Run("nethttp", func(t *testing.T) { f(t, Config{NetHTTP: true}) })
}

func endpoint(t testing.TB, cfg Config, url string) *Endpoint {
	t.Helper()
	cfg.URL = url
	e, err := NewEndpoint(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(e.Close)
	return e
}

func server(t testing.TB, h http.HandlerFunc) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// body reads what is left.
func body(t testing.TB, r *Response) string {
	t.Helper()
	b, err := io.ReadAll(r.Body)
	if err != nil {
		t.Fatalf("body: %v", err)
	}
	r.Body.Close()
	return string(b)
}

func TestRequestAndAnswer(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		s := server(t, func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			w.Header().Set("X-Echo", r.Header.Get("X-Ask"))
			w.Header().Add("X-Two", "1")
			w.Header().Add("X-Two", "2")
			w.WriteHeader(201)
			fmt.Fprintf(w, "%s %s %s %d %s", r.Method, r.RequestURI, r.Host, r.ContentLength, b)
		})
		e := endpoint(t, cfg, s.URL)
		for range 3 {
			resp, err := e.Do(context.Background(), &Request{
				Method: "POST", Path: "/a%2Fb?x=1&y=%20",
				Header: Header{{"X-Ask", "seven"}},
				Body:   [][]byte{[]byte("one"), nil, []byte("two")},
			})
			if err != nil {
				t.Fatal(err)
			}
			if resp.Status != 201 || resp.Get("x-echo") != "seven" || strings.Join(resp.Values("X-Two"), ",") != "1,2" {
				t.Errorf("status %d head %q", resp.Status, resp.head)
			}
			got := body(t, resp)
			want := "POST /a%2Fb?x=1&y=%20 " + strings.TrimPrefix(s.URL, "http://") + " 6 onetwo"
			if got != want {
				t.Errorf("got %q, want %q", got, want)
			}
		}
		if st := e.Stats(); st.Dials != 1 || st.Reuses != 2 || st.Active != 0 {
			t.Errorf("stats %+v", st)
		}
	})
}

func TestStreamIsHandedOnPieceByPiece(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		next := make(chan struct{})
		s := server(t, func(w http.ResponseWriter, r *http.Request) {
			for i := range 5 {
				<-next
				fmt.Fprintf(w, "data: %d\n\n", i)
				w.(http.Flusher).Flush()
			}
		})
		e := endpoint(t, cfg, s.URL)
		go func() { next <- struct{}{} }()
		resp, err := e.Do(context.Background(), &Request{Method: "GET", Path: "/"})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 5 {
			p, err := resp.Body.Next()
			if err != nil || string(p) != fmt.Sprintf("data: %d\n\n", i) {
				t.Fatalf("piece %d: %q %v", i, p, err)
			}
			if resp.Body.Buffered() != 0 {
				t.Errorf("buffered %d", resp.Body.Buffered())
			}
			if i < 4 {
				next <- struct{}{}
			}
		}
		if _, err := resp.Body.Next(); err != io.EOF {
			t.Errorf("end: %v", err)
		}
		if !resp.Body.Done() {
			t.Error("not done after EOF")
		}
		resp.Body.Close()
	})
}

// The engine must see within moments that nobody waits for its answer.
func TestCancelInEveryPhase(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		for _, phase := range []string{"headers", "body"} {
			t.Run(phase, func(t *testing.T) {
				arrived, gone := make(chan struct{}), make(chan struct{})
				s := server(t, func(w http.ResponseWriter, r *http.Request) {
					io.Copy(io.Discard, r.Body)
					if phase == "body" {
						io.WriteString(w, "x")
						w.(http.Flusher).Flush()
					}
					close(arrived)
					<-r.Context().Done()
					close(gone)
				})
				e := endpoint(t, cfg, s.URL)
				ctx, cancel := context.WithCancel(context.Background())
				answered := make(chan struct{})
				if phase == "headers" {
					close(answered)
				}
				go func() { <-arrived; <-answered; cancel() }()
				resp, err := e.Do(ctx, &Request{Method: "POST", Path: "/", Body: [][]byte{[]byte("{}")}})
				if phase == "body" {
					if err != nil {
						t.Fatal(err)
					}
					close(answered)
					_, err = io.ReadAll(resp.Body)
				}
				var ue *Error
				if !errors.Is(err, context.Canceled) || !errors.As(err, &ue) || ue.Kind != KindCanceled || EngineFault(err) || nothingSent(err) {
					t.Errorf("error %v", err)
				}
				select {
				case <-gone:
				case <-time.After(patience):
					t.Error("the engine was not told")
				}
				if n := e.Stats().Active; n != 0 {
					t.Errorf("%d active", n)
				}
			})
		}
	})
}
