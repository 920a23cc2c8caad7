package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// fakeCluster are routers that pass requests on as far as a limit lets them: one limit of
// all, or with each one of its own.
type fakeCluster struct {
	each bool
	one  chan struct{}
	room atomic.Int64

	mu   sync.Mutex
	live map[int]bool
	// fails is the status of every tenth answer, 0: all are good.
	fails, asked int
}

func (c *fakeCluster) view() View {
	c.mu.Lock()
	defer c.mu.Unlock()
	v := View{Answering: len(c.live)}
	for i := range 3 {
		if c.live[i] {
			v.Keeper = memberName(i)
			break
		}
	}
	return v
}

func (c *fakeCluster) failing() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked++
	return c.fails > 0 && c.asked%10 == 0
}

func (c *fakeCluster) start(_ context.Context, i int, o RouterOptions) (*Member, error) {
	slots := c.one
	if c.each {
		slots = make(chan struct{}, o.Slots)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if c.failing() {
			w.WriteHeader(c.fails)
			return
		}
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
		case <-r.Context().Done():
			return
		}
		room := c.room.Add(1)
		body := fmt.Sprintf(`{"model":%q,"messages":[{"role":"user","content":"hello"}],"max_tokens":4,"bootstrap_host":"127.0.0.1","bootstrap_port":%d,"bootstrap_room":%d}`, model, o.BootstrapPort, room)
		var legs sync.WaitGroup
		for _, url := range []string{o.PrefillURL, o.DecodeURL} {
			legs.Go(func() { post(r.Context(), http.DefaultClient, url, body) })
		}
		legs.Wait()
	})
	s := httptest.NewServer(handler)
	set := func(live bool) {
		c.mu.Lock()
		defer c.mu.Unlock()
		if live {
			c.live[i] = true
		} else {
			delete(c.live, i)
		}
	}
	set(true)
	return &Member{
		Router: &Router{URL: s.URL, Stop: func() { s.CloseClientConnections(); s.Close() }},
		View:   c.view,
		Kill: func() {
			set(false)
			s.CloseClientConnections()
			s.Listener.Close()
			s.CloseClientConnections()
			s.Close()
		},
	}, nil
}

// The demo of several routers finds a limit that did not hold, and requests that were not
// answered.
func TestRoutersAreChecked(t *testing.T) {
	for name, tc := range map[string]struct {
		cluster *fakeCluster
		want    string
	}{
		"one limit":           {&fakeCluster{}, "All results are as they must be."},
		"limits of their own": {&fakeCluster{each: true}, "were in prefill at once, must be 6"},
		"errors":              {&fakeCluster{fails: 503}, "a request was not answered: status 503"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := tc.cluster
			c.one, c.live = make(chan struct{}, 6), map[int]bool{}
			var out bytes.Buffer
			err := RunRouters(t.Context(), Options{Out: &out, Routers: 3, PrefillTime: 100 * time.Millisecond, StartMember: c.start})
			text := strings.Join(strings.Fields(out.String()), " ")
			if !strings.Contains(text, tc.want) || (err == nil) == strings.Contains(text, "WRONG") {
				t.Errorf("%v\n%s\nwant %s", err, out.String(), tc.want)
			}
		})
	}
}

// The demo can be stopped, and leaves nothing behind.
func TestRoutersCanBeStopped(t *testing.T) {
	c := &fakeCluster{one: make(chan struct{}, 6), live: map[int]bool{}}
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(300*time.Millisecond, cancel)
	if err := RunRouters(ctx, Options{Out: io.Discard, Routers: 3, StartMember: c.start}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}
