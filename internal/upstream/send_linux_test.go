//go:build !sluice_noraw

// What sockets that are read and written directly do; elsewhere package net has them.

package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sluice-router/sluice/internal/wire"
)

// warm returns an endpoint with one idle connection to s.
func warm(t *testing.T, s *scripted) (*Endpoint, *conn) {
	t.Helper()
	e := endpoint(t, Config{}, s.url)
	resp, err := e.Do(context.Background(), post("first"))
	if err != nil {
		t.Fatal(err)
	}
	body(t, resp)
	return e, e.t.(*own).pool.conns[0]
}

// An idle connection over which something has come, an end or a byte, gets nothing
// of a request: it goes over another one.
func TestStaleConnectionIsNotWrittenTo(t *testing.T) {
	for _, how := range []string{"end", "byte", "reset"} {
		t.Run(how, func(t *testing.T) {
			next, came := make(chan struct{}), make(chan struct{})
			late := make(chan string, 1)
			s := script(t, func(n int, p *peer) {
				_, b, _ := p.request()
				p.say(okAnswer)
				if n > 0 {
					late <- b
					return
				}
				<-next
				switch how {
				case "end":
					p.CloseWrite()
				case "byte":
					p.say("\n")
				case "reset":
					p.SetLinger(0)
					p.Close()
				}
				close(came)
				if rest, _ := io.ReadAll(p.br); len(rest) > 0 {
					t.Errorf("%q arrived on the stale connection", rest)
				}
			})
			e, _ := warm(t, s)
			close(next)
			<-came
			resp, err := e.Do(context.Background(), post("second"))
			if err != nil {
				t.Fatal(err)
			}
			if got := body(t, resp); got != "ok" || resp.Reused || <-late != "second" {
				t.Errorf("%q, reused %t", got, resp.Reused)
			}
			if st := e.Stats(); st.Stale != 1 || st.Reuses != 0 || st.Resends != 0 || st.Dials != 2 || st.Active != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// visits sees each visit to the socket of a connection.
type visits struct {
	syscall.RawConn
	visit func(fd uintptr, f func(uintptr) bool) bool
}

func (v *visits) Read(f func(uintptr) bool) error {
	return v.RawConn.Read(func(fd uintptr) bool { return v.visit(fd, f) })
}

// readable waits until something has come.
func readable(t *testing.T, fd uintptr) {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	if n, err := unix.Poll(p, int(patience.Milliseconds())); n != 1 || err != nil {
		t.Errorf("nothing came: %v", err)
	}
}

// What comes after the look at a connection and before the wait for the answer must
// end the wait, although nobody looks again in between.
func TestNothingIsMissedBetweenLookAndWait(t *testing.T) {
	for _, when := range []string{"before the request is written", "after it"} {
		t.Run(when, func(t *testing.T) {
			early := make(chan struct{})
			s := script(t, func(n int, p *peer) {
				p.request()
				p.say(okAnswer)
				if when == "after it" {
					p.request()
				}
				<-early
				p.say("HTTP/1.1 408 Request Timeout\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				p.gone()
			})
			e, c := warm(t, s)
			c.raw = &visits{c.raw, func(fd uintptr, f func(uintptr) bool) bool {
				select {
				case <-early:
					return f(fd)
				default:
				}
				if when == "after it" {
					if f(fd) || c.out != nil {
						t.Error("it was not sent in the first visit")
					}
					close(early)
					readable(t, fd)
					return false
				}
				// What tryRead does, with the answer in the middle.
				if n, err := wire.Read(fd, make([]byte, 1)); err != wire.ErrWouldBlock {
					t.Errorf("%d bytes, %v", n, err)
				}
				close(early)
				readable(t, fd)
				c.unseen = false
				if err := c.trySend(fd); err != nil {
					t.Error(err)
				}
				return false
			}}
			resp, err := e.Do(context.Background(), post("second"))
			if err != nil {
				t.Fatal(err)
			}
			if body(t, resp); resp.Status != 408 || !resp.Reused {
				t.Errorf("status %d, reused %t", resp.Status, resp.Reused)
			}
		})
	}
}

// A request on an idle connection takes one look, one write, and one read when the
// answer is there. Meanwhile the connection holds neither a buffer nor the request.
func TestOneVisitSends(t *testing.T) {
	arrived, answer := make(chan struct{}), make(chan struct{})
	s := script(t, func(n int, p *peer) {
		for i := 0; ; i++ {
			if _, _, ok := p.request(); !ok {
				return
			}
			if i > 0 {
				close(arrived)
				<-answer
			}
			p.say(okAnswer)
		}
	})
	e, c := warm(t, s)
	n := 0
	c.raw = &visits{c.raw, func(fd uintptr, f func(uintptr) bool) bool {
		n++
		done := f(fd)
		if n == 1 {
			if done || c.in.B != nil || c.out != nil {
				t.Errorf("done %t, it holds %d bytes and %p", done, len(c.in.B), c.out)
			}
			<-arrived
			close(answer)
			readable(t, fd)
		}
		return done
	}}
	resp, err := e.Do(context.Background(), post("second"))
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, resp); got != "ok" || n != 2 {
		t.Errorf("%q after %d visits", got, n)
	}
}

// A server that speaks before it is asked is heard on a new connection, whose first
// bytes may have come before anybody waited for them.
func TestAnswerBeforeTheRequest(t *testing.T) {
	s := script(t, func(n int, p *peer) {
		p.say("HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		p.gone()
	})
	e := endpoint(t, Config{}, s.url)
	o := e.t.(*own)
	c, cerr := o.connect(context.Background(), 0, 0)
	if cerr != nil {
		t.Fatal(cerr)
	}
	if err := c.raw.Control(func(fd uintptr) { readable(t, fd) }); err != nil {
		t.Fatal(err)
	}
	x := &exchange{own: o, c: c, ctx: context.Background()}
	if err := x.run(post("{}")); err != nil {
		t.Fatal(err)
	}
	if body(t, &x.resp); x.resp.Status != 503 {
		t.Errorf("status %d", x.resp.Status)
	}
}

// A limit that has passed before the request goes out keeps it from going out.
func TestLimitPassedBeforeSending(t *testing.T) {
	over := make(chan struct{})
	s := script(t, func(n int, p *peer) {
		defer close(over)
		p.request()
		p.say(okAnswer)
		if rest, _ := io.ReadAll(p.br); len(rest) > 0 {
			t.Errorf("%q arrived", rest)
		}
	})
	e, _ := warm(t, s)
	req := post("second")
	req.Limits.Total = time.Nanosecond
	_, err := e.Do(context.Background(), req)
	var ue *Error
	if !errors.As(err, &ue) || ue.Kind != KindTimeout || ue.Limit != LimitTotal || ue.Sent || !ue.Reused {
		t.Errorf("%+v", ue)
	}
	<-over
	if st := e.Stats(); st.Resends != 0 || st.Active != 0 || st.Idle != 0 {
		t.Errorf("stats %+v", st)
	}
}

// Leaving while the answer is waited for on a connection that was idle.
func TestCancelOnReusedConnection(t *testing.T) {
	arrived, gone := make(chan struct{}), make(chan struct{})
	s := script(t, func(n int, p *peer) {
		p.request()
		p.say(okAnswer)
		p.request()
		close(arrived)
		p.gone()
		close(gone)
	})
	e, _ := warm(t, s)
	ctx, cancel := context.WithCancel(context.Background())
	go func() { <-arrived; cancel() }()
	_, err := e.Do(ctx, post("second"))
	var ue *Error
	if !errors.As(err, &ue) || ue.Kind != KindCanceled || !ue.Sent || !ue.Reused || !errors.Is(err, context.Canceled) {
		t.Errorf("%+v", ue)
	}
	select {
	case <-gone:
	case <-time.After(patience):
		t.Error("the engine was not told")
	}
	if st := e.Stats(); st.Stale != 0 || st.Resends != 0 || st.Dials != 1 || st.Active != 0 {
		t.Errorf("stats %+v", st)
	}
}

// A body that the socket does not take at once, on a connection that was idle: the
// answer is heard before the body is out, and all of the body arrives if it is read.
func TestBigBodyOnReusedConnection(t *testing.T) {
	const refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntoo big"
	want := bytes.Join(bigBody(), nil)
	for _, refuse := range []bool{false, true} {
		s := script(t, func(n int, p *peer) {
			p.request()
			p.say(okAnswer)
			r := p.head()
			if refuse {
				p.say(refusal)
				p.gone()
				return
			}
			if b, _ := io.ReadAll(r.Body); !bytes.Equal(b, want) {
				t.Error("another body arrived")
			}
			p.say(okAnswer)
			p.gone()
		})
		e, _ := warm(t, s)
		segs := bigBody()
		resp, err := e.Do(context.Background(), &Request{Method: "POST", Path: "/", Body: segs})
		if err != nil {
			t.Fatal(err)
		}
		got := body(t, resp)
		if refuse && (resp.Status != 413 || got != "too big") || !refuse && (resp.Status != 200 || got != "ok") || !resp.Reused {
			t.Errorf("%d %q, reused %t", resp.Status, got, resp.Reused)
		}
		clear(segs[2]) // ours again: the race detector would tell
		if st := e.Stats(); st.Dials != 1 || st.Active != 0 || st.Idle != map[bool]int64{true: 0, false: 1}[refuse] {
			t.Errorf("stats %+v", st)
		}
	}
}
