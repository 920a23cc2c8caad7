package upstream

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
)

// bigBody is more than the sockets between client and server take up.
func bigBody() [][]byte {
	b := bytes.Repeat([]byte("0123456789abcdef"), 1<<20)
	return [][]byte{b[:1<<10], b[1<<10 : 8<<20], b[8<<20:]}
}

// An engine that refuses a body it has not read must be heard, whether it then
// hangs up, resets, or leaves the connection open and reads nothing.
func TestEarlyAnswer(t *testing.T) {
	const refusal = "HTTP/1.1 413 Too Large\r\nContent-Length: 7\r\nConnection: close\r\n\r\ntoo big"
	for _, tc := range []struct {
		name string
		then func(p *peer)
	}{
		{"hangs up", func(p *peer) {}},
		{"ends its half", func(p *peer) { p.CloseWrite(); p.gone() }},
		{"stays silent", func(p *peer) { <-p.end }},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := script(t, func(n int, p *peer) {
				if p.head() == nil {
					return
				}
				p.say(refusal)
				tc.then(p)
			})
			e := endpoint(t, Config{}, s.url)
			for range 3 {
				segs := bigBody()
				resp, err := e.Do(context.Background(), &Request{Method: "POST", Path: "/", Body: segs})
				if err != nil {
					t.Fatal(err)
				}
				if got := body(t, resp); resp.Status != 413 || got != "too big" {
					t.Errorf("%d %q", resp.Status, got)
				}
				clear(segs[2]) // ours again: the race detector would tell
			}
			if st := e.Stats(); st.Active != 0 || st.Idle != 0 {
				t.Errorf("stats %+v", st)
			}
		})
	}
}

// An engine that reads all of a big body gets all of it, and keeps its connection.
func TestBigBody(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		want := bytes.Join(bigBody(), nil)
		s := script(t, func(n int, p *peer) {
			for {
				_, b, ok := p.request()
				if !ok {
					return
				}
				if b != string(want) {
					t.Error("another body arrived")
				}
				p.say(okAnswer)
			}
		})
		e := endpoint(t, cfg, s.url)
		bodies := [][][]byte{bigBody(), bigBody(), bigBody(), nil}
		for c := range slices.Chunk(want[:3000*16], 16) { // more segments than one system call takes
			bodies[3] = append(bodies[3], c)
		}
		bodies[3] = append(bodies[3], want[3000*16:])
		for _, segs := range bodies {
			resp, err := e.Do(context.Background(), &Request{Method: "POST", Path: "/", Body: segs})
			if err != nil {
				t.Fatal(err)
			}
			if body(t, resp) != "ok" {
				t.Error("no answer")
			}
		}
		// The answer may be here before the goroutine that writes has said that all is out. It
		// gets some milliseconds, in net/http 50, which a busy machine may not give it: then the
		// connection is closed. Not each time.
		if n := s.accepted(); n == len(bodies) {
			t.Errorf("%d connections for as many requests: none was kept", n)
		}
	})
}

// An answer may begin and go on while the body is still being sent.
func TestAnswerDuringBody(t *testing.T) {
	s := script(t, func(n int, p *peer) {
		r := p.head()
		p.say("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\no")
		io.Copy(io.Discard, r.Body)
		p.say("k")
		p.gone()
	})
	e := endpoint(t, Config{}, s.url)
	resp, err := e.Do(context.Background(), &Request{Method: "POST", Path: "/", Body: bigBody()})
	if err != nil {
		t.Fatal(err)
	}
	if got := body(t, resp); got != "ok" {
		t.Errorf("%q", got)
	}
	if n := e.Stats().Idle; n != 1 {
		t.Errorf("%d idle", n)
	}
}

// When the request cannot be written and no answer comes, the error is about the
// writing, within moments.
func TestWriteFails(t *testing.T) {
	for _, kind := range []string{"tcp", "no socket"} {
		t.Run(kind, func(t *testing.T) {
			var cfg Config
			url := "http://engine"
			if kind == "tcp" {
				url = script(t, func(n int, p *peer) {
					p.head()
					p.SetLinger(0)
				}).url
			} else {
				cfg.Dial = func(context.Context, string, string) (net.Conn, error) {
					a, b := net.Pipe()
					go func() {
						io.CopyN(io.Discard, b, 1000)
						b.Close()
					}()
					return a, nil
				}
			}
			e := endpoint(t, cfg, url)
			_, err := e.Do(context.Background(), &Request{Method: "POST", Path: "/", Body: bigBody()})
			var ue *Error
			if !errors.As(err, &ue) || ue.Op != OpWrite && ue.Op != OpHeader || ue.Kind != KindReset && ue.Kind != KindClosed && ue.Kind != KindOther || !ue.Sent {
				t.Errorf("%v", err)
			}
		})
	}
}

// Segments belong to the caller again as soon as Do failed.
func TestSegmentsAreGivenBack(t *testing.T) {
	transports(t, func(t *testing.T, cfg Config) {
		arrived := make(chan struct{})
		s := script(t, func(n int, p *peer) {
			p.head()
			close(arrived)
			<-p.end // reads nothing
		})
		e := endpoint(t, cfg, s.url)
		ctx, cancel := context.WithCancel(context.Background())
		go func() { <-arrived; cancel() }()
		segs := bigBody()
		_, err := e.Do(ctx, &Request{Method: "POST", Path: "/", Body: segs})
		clear(segs[2])
		if kindOf(err) != KindCanceled {
			t.Error(err)
		}
		if strings.Contains(err.Error(), "0123") {
			t.Error("payload in an error")
		}
	})
}
