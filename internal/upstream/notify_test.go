package upstream

import (
	"context"
	"sync"
	"testing"
)

// notifier is a Notifier that counts.
type notifier struct {
	context.Context
	cancel context.CancelFunc

	mu        sync.Mutex
	listeners []Listener // guarded by mu
	notified  int        // guarded by mu
}

func newNotifier() *notifier {
	n := &notifier{}
	n.Context, n.cancel = context.WithCancel(context.Background())
	return n
}

func (n *notifier) Notify(l Listener) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.notified++
	n.listeners = append(n.listeners, l)
}

func (n *notifier) Forget(l Listener) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for i := range n.listeners {
		if n.listeners[i] == l {
			n.listeners = append(n.listeners[:i], n.listeners[i+1:]...)
			return true
		}
	}
	return false
}

func (n *notifier) end() {
	n.cancel()
	n.mu.Lock()
	told := n.listeners
	n.listeners = nil
	n.mu.Unlock()
	for _, l := range told {
		l.ContextEnded()
	}
}

// A context that is a Notifier is asked by that way, and left alone afterwards.
func TestNotifier(t *testing.T) {
	arrived := make(chan struct{})
	s := script(t, func(n int, p *peer) {
		for range 2 {
			p.request()
			p.say(okAnswer)
		}
		p.request()
		close(arrived)
		p.gone()
	})
	e := endpoint(t, Config{}, s.url)
	n := newNotifier()
	for i := range 2 {
		resp, err := e.Do(n, post("{}"))
		if err != nil {
			t.Fatal(err)
		}
		if len(n.listeners) != 1 {
			t.Errorf("%d listeners", len(n.listeners))
		}
		body(t, resp)
		if len(n.listeners) != 0 || n.notified != i+1 {
			t.Errorf("%d listeners of %d are left", len(n.listeners), n.notified)
		}
	}
	if st := e.Stats(); st.Dials != 1 || st.Idle != 1 {
		t.Errorf("stats %+v", st)
	}
	go func() { <-arrived; n.end() }()
	if _, err := e.Do(n, post("{}")); kindOf(err) != KindCanceled {
		t.Error(err)
	}
	if st := e.Stats(); st.Dials != 1 || st.Idle != 0 || st.Active != 0 {
		t.Errorf("stats %+v", st)
	}
}
