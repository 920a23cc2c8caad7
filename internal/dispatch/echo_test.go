package dispatch

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/openai"
)

// quietClient is a client's side of a clientWriter, without a server.
func quietClient(route openai.Route) (*request, *httptest.ResponseRecorder) {
	rec := httptest.NewRecorder()
	x := &request{w: rec, call: &Call{Route: route, Peeked: &openai.Peeked{Stream: true}}, d: &services{cfg: config.Default()}}
	x.out.init(x)
	x.out.startKeepAlive()
	return x, rec
}

// heard is what the client has.
func heard(x *request, rec *httptest.ResponseRecorder) string {
	x.out.mu.Lock()
	defer x.out.mu.Unlock()
	return rec.Body.String()
}

// While an opening event was held back, the client heard nothing up to the keep-alive's
// interval, though the engine had spoken.
func TestWhatIsHeldBackIsOwedWithinASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, rec := quietClient(openai.RouteChatCompletions)
		time.Sleep(3 * time.Second)
		x.out.owe()
		time.Sleep(echoDelay - time.Millisecond)
		synctest.Wait()
		if heard(x, rec) != "" {
			t.Errorf("a sign at once: %q", heard(x, rec))
		}
		time.Sleep(time.Millisecond)
		synctest.Wait()
		if heard(x, rec) != comment || x.out.begun {
			t.Errorf("after a second: %q, begun %t", heard(x, rec), x.out.begun)
		}
		time.Sleep(15 * time.Second)
		synctest.Wait()
		if heard(x, rec) != comment+comment {
			t.Errorf("the keep-alive did not go on: %q", heard(x, rec))
		}
		x.out.owe()
		if f := x.out.write([]byte("data: {}\n\n"), true); f != nil {
			t.Fatal(f)
		}
		time.Sleep(14 * time.Second)
		synctest.Wait()
		if !strings.HasSuffix(heard(x, rec), "data: {}\n\n") {
			t.Errorf("what was passed is owed still: %q", heard(x, rec))
		}
		x.out.stopKeepAlive()
		x.out.owe()
		before := heard(x, rec)
		time.Sleep(time.Hour)
		if heard(x, rec) != before {
			t.Errorf("signs behind the end: %q", heard(x, rec))
		}
	})
}

// An engine's comments and thinking that is not told are echoed, once in a second.
func TestEchoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, rec := quietClient(openai.RouteMessages)
		defer x.out.stopKeepAlive()
		for i, want := range []int{1, 1, 1, 1, 2, 2, 2, 2, 3} {
			if f := x.out.echo(); f != nil {
				t.Fatal(f)
			}
			if n := strings.Count(heard(x, rec), ping); n != want || len(ping)*n != len(heard(x, rec)) {
				t.Errorf("%d: %d pings, want %d: %q", i, n, want, heard(x, rec))
			}
			time.Sleep(echoDelay / 4)
		}
		if x.out.begun {
			t.Error("no attempt can follow an echo")
		}
		if f := x.out.write([]byte("event: a\n"), false); f != nil {
			t.Fatal(f)
		}
		time.Sleep(2 * echoDelay)
		if f := x.out.echo(); f != nil || !strings.HasSuffix(heard(x, rec), "event: a\n") {
			t.Errorf("an echo inside an event: %q", heard(x, rec))
		}
	})
}

// What the engine said shortly after a sign was passed on with its next event only,
// however late that came.
func TestAnEchoThatCameTooSoonIsOwed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		x, rec := quietClient(openai.RouteMessages)
		defer x.out.stopKeepAlive()
		for range 3 { // at 0, 300 and 600 ms
			if f := x.out.echo(); f != nil {
				t.Fatal(f)
			}
			time.Sleep(300 * time.Millisecond)
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if n := strings.Count(heard(x, rec), ping); n != 2 {
			t.Errorf("after a second: %d pings, want 2", n)
		}
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if n := strings.Count(heard(x, rec), ping); n != 2 {
			t.Errorf("without a word from the engine: %d pings, want 2", n)
		}
	})
}

func TestOnlyOpening(t *testing.T) {
	for event, want := range map[string]bool{
		`{"role":"assistant","content":""}`:                                                                              true,
		`{"role":"assistant","content":"","reasoning_content":null,"tool_calls":null}`:                                   true,
		`{"role":"assistant","content":null,"reasoning_content":""}`:                                                     true,
		`{"role":"assistant","content":"","function_call":null,"tool_calls":[]}`:                                         true,
		`{"role":"assistant","content":null,"tool_calls":[{"index":0,"id":"c","function":{"name":"f","arguments":""}}]}`: false,
		`{"role":"assistant","content":"","reasoning_content":"hm"}`:                                                     false,
		`{"role":"assistant","content":null,"reasoning":"hm"}`:                                                           false,
		`{"role":"assistant","content":"a"}`:                                                                             false,
	} {
		piece := []byte(`data: {"choices":[{"index":0,"delta":` + event + `,"finish_reason":null}]}` + "\n\n")
		r := relay{x: &request{call: &Call{Route: openai.RouteChatCompletions}}}
		r.scan.Feed(piece)
		if got := r.onlyOpening(nil, piece); got != want {
			t.Errorf("%s: %t", event, got)
		}
	}
}

// slowClient takes its time for what it is flushed.
type slowClient struct {
	*httptest.ResponseRecorder
	takes time.Duration
}

func (s *slowClient) FlushError() error {
	time.Sleep(s.takes)
	return nil
}

// A timer that fired may wait while the handler writes: two signs of life in a row were
// written then. The call of tick is the one that waited.
func TestNoTwoSignsInARow(t *testing.T) {
	t.Run("the client reads slowly", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x, rec := quietClient(openai.RouteChatCompletions)
			defer x.out.stopKeepAlive()
			x.out.rc = *http.NewResponseController(&slowClient{rec, 2 * x.out.keepAlive})
			x.out.timer.Stop()
			if f := x.out.echo(); f != nil {
				t.Fatal(f)
			}
			x.out.tick()
			if got := heard(x, rec); got != comment {
				t.Errorf("%q", got)
			}
		})
	})
	t.Run("the engine speaks twice", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x, rec := quietClient(openai.RouteChatCompletions)
			defer x.out.stopKeepAlive()
			for range 2 {
				if f := x.out.echo(); f != nil { // the second is owed
					t.Fatal(f)
				}
			}
			x.out.tick()
			if got := heard(x, rec); got != comment {
				t.Errorf("at once: %q", got)
			}
			time.Sleep(echoDelay)
			synctest.Wait()
			if got := heard(x, rec); got != comment+comment {
				t.Errorf("what is owed: %q", got)
			}
		})
	})
	t.Run("inside an event", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			x, rec := quietClient(openai.RouteChatCompletions)
			defer x.out.stopKeepAlive()
			x.out.write([]byte("data: "), false)
			time.Sleep(10 * x.out.keepAlive)
			x.out.write([]byte("{}\n\n"), true)
			time.Sleep(x.out.keepAlive)
			synctest.Wait()
			if got := heard(x, rec); got != "data: {}\n\n"+comment {
				t.Errorf("%q", got)
			}
		})
	})
}
