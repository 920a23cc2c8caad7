package e2e

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
)

// feed is that of the only rank of a simulated worker.
func (r *router) feed(id string) (f cacheFeed) {
	r.t.Helper()
	if w := r.worker(id); len(w.Ranks) == 1 {
		return w.Ranks[0].Cache
	}
	return f
}

// tokens asks for a completion of token ids.
func (r *router) tokens(first, n int, headers ...string) *answer {
	r.t.Helper()
	a := send(probeClient, "POST", r.url()+"/v1/completions", tokensFrom(first, n), headers...).wait(r.t)
	a.good(r.t)
	return a
}

// waitHeld waits until engines have told that exactly these workers hold a prompt of token ids.
func (r *router) waitHeld(first, n int, by ...string) {
	r.t.Helper()
	eventually(r.t, fmt.Sprintf("the tokens from %d on are held by %q", first, by), func() string {
		held := r.holders("completions", tokensFrom(first, n), true)
		for _, id := range by {
			if held[id] == 0 {
				return fmt.Sprint(held)
			}
		}
		if len(held) != len(by) {
			return fmt.Sprint(held)
		}
		return ""
	})
}

// Routers on one fleet know what the others' requests left in the caches, and so does one that
// starts anew. What an engine loses, each of them forgets.
func TestRoutersShareWhatEnginesTell(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ name, form string }{
		{"vllm", "map"}, {"vllm", "array"}, {"sglang", "sglang"}, {"sglang", "sglang-map"},
	} {
		if c.form == "array" && !full {
			continue
		}
		t.Run(c.form, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, "--backend", c.name, "--regular", "3", "--cache-report", "--kv-events", "--kv-events-form", c.form)
			slow := []string{"--worker-wedge-secs", "600"} // so that no leg moves on a slow machine
			one, two := startRouter(t, fleet, slow...), startRouter(t, fleet, slow...)
			one.waitFeeds("exact")
			two.waitFeeds("exact")
			const n = 600
			at := map[int]string{}
			for _, first := range []int{1000, 2000, 3000} {
				at[first] = fleet.computing(one.tokens(first, n).id).Worker
				two.waitHeld(first, n, at[first])
			}
			three := startRouter(t, fleet, slow...) // after the events: they are repeated for it
			three.waitFeeds("exact")
			for _, r := range []*router{two, three} {
				for first, id := range at {
					r.waitHeld(first, n, id)
					a := r.tokens(first, n)
					if best, chosen, told := r.wantCache(a, "holder"); best < n-32 || chosen != best || told < n-32 || fleet.computing(a.id).Worker != id {
						t.Errorf("at %s, held by %s: best %d, chosen %d, reported %d", fleet.computing(a.id).Worker, id, best, chosen, told)
					}
				}
			}
			// An engine forgets: by a reset, which it tells of with its next step, and by a
			// restart, which starts its events anew.
			lost := at[1000]
			pin := []string{"X-Smg-Target-Worker", fleet.worker(lost).URL}
			fleet.do(lost, "kv-clear", "")
			one.tokens(4000, n, pin...)
			for _, r := range []*router{one, two, three} {
				r.waitHeld(4000, n, lost)
				r.waitHeld(1000, n)
			}
			fleet.do(lost, "kill", "")
			fleet.do(lost, "restart", "")
			for _, r := range []*router{one, two, three} {
				r.waitHeld(4000, n)
			}
			one.waitFeeds("exact")
			one.waitReady()
			one.tokens(5000, n, pin...)
			for _, r := range []*router{one, two, three} {
				r.waitHeld(5000, n, lost)
				for first, id := range at {
					if id != lost {
						r.waitHeld(first, n, id)
					}
				}
			}
		})
	}
}

// Missed events are asked for again. Where they are not to be had, what was told of the rank
// counts no more, and no request is the worse for it.
func TestMissedEventsOfCaches(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, lie string
		args      []string
		healed    bool
	}{
		{"repeated", "kind=drop,count=1", nil, true},
		{"lost", "kind=lose,count=1", nil, false},
		{"no replay", "kind=drop,count=1", []string{"--kv-events-replay-port", "-1"}, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			fleet := startSim(t, append(c.args, "--backend", "vllm", "--regular", "1", "--cache-report", "--kv-events")...)
			r := startRouter(t, fleet)
			r.waitFeeds("exact")
			const n, id = 600, "regular-0"
			r.tokens(1000, n)
			r.waitHeld(1000, n, id)
			fleet.do(id, "kv-lie", c.lie)
			r.tokens(2000, n) // of which no event comes
			r.tokens(3000, n)
			r.waitHeld(3000, n, id)
			if c.healed {
				r.waitHeld(1000, n, id)
				r.waitHeld(2000, n, id)
			} else {
				r.waitHeld(1000, n)
				r.waitHeld(2000, n)
			}
			if f := r.feed(id); f.Feed != "exact" || f.Events.Gaps != 1 || (f.Events.Unfilled == 1) == c.healed {
				t.Errorf("%+v", f)
			}
			why := map[bool]string{true: "holder", false: "none"}[c.healed]
			r.wantCache(r.tokens(2000, n), why)
		})
	}
}

// An engine that computes prompts and tells nothing of it is not believed, and said so; it
// serves as before and counts as ready, and is believed again once it tells.
func TestSilentEventsOfCaches(t *testing.T) {
	t.Parallel()
	fleet := startSim(t, "--backend", "vllm", "--prefill", "2", "--decode", "1", "--cache-report", "--kv-events")
	r := startRouter(t, fleet, "--kv-events-silent-secs", "0.5")
	r.waitFeeds("exact")
	const n, id = 600, "prefill-0"
	pin := []string{"X-Smg-Target-Worker", fleet.worker(id).URL}
	live := fmt.Sprintf(`sluice_rank_kv_events_live{rank=%q,role="prefill"}`, fleet.worker(id).URL)
	r.tokens(1000, n, pin...)
	r.tokens(1000, n, pin...)
	r.waitHeld(1000, n, id)
	r.waitMetric(live, 1)
	fleet.do(id, "kv-lie", "kind=silent")
	first := 2000
	eventually(t, "its silence is noticed", func() string {
		first += n
		r.tokens(first, n, pin...)
		if f := r.feed(id); f.Feed != "degraded" || f.Degraded == nil || f.Degraded.Why == "" {
			return fmt.Sprintf("%+v", f)
		}
		return ""
	})
	r.waitMetric(live, 0)
	r.waitMetric(`sluice_kv_ranks{feed="degraded",role="prefill"}`, 1)
	if status, body := r.get("/readyz"); status != http.StatusOK || len(r.missing()) != 0 {
		t.Errorf("not ready: %d %s %v", status, clip(body), r.missing())
	}
	// What it was sent counts now.
	if held := r.holders("completions", tokensFrom(first, n), false); held[id] == 0 {
		t.Errorf("the tokens from %d on are held by %v", first, held)
	}
	a := r.tokens(first, n)
	if r.wantCache(a, "holder"); fleet.computing(a.id).Worker != id {
		t.Errorf("a holder that is degraded is not chosen")
	}
	if err := fleet.call("DELETE", "/sim/workers/"+id+"/kv-lie", "", nil); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is believed again", func() string {
		first += n
		r.tokens(first, n, pin...)
		if f := r.feed(id); f.Feed != "exact" {
			return fmt.Sprintf("%+v", f)
		}
		return ""
	})
	r.waitHeld(first, n, id)
}

// garbageServer is what may listen where an engine's events are looked for.
type garbageServer struct {
	addr  string
	bytes atomic.Int64 // written
	conns atomic.Int64
}

func startGarbage(t *testing.T, serve func(net.Conn) error) *garbageServer {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &garbageServer{addr: ln.Addr().String()}
	var all sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	t.Cleanup(func() {
		_ = ln.Close()
		mu.Lock()
		for c := range open {
			_ = c.Close()
		}
		mu.Unlock()
		all.Wait()
	})
	all.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			mu.Lock()
			open[c] = true
			mu.Unlock()
			g.conns.Add(1)
			all.Go(func() {
				_ = serve(countedConn{c, &g.bytes}) // until the router has enough
				_ = c.Close()
			})
		}
	})
	return g
}

type countedConn struct {
	net.Conn
	n *atomic.Int64
}

// enoughGarbage is what one server writes in all.
const enoughGarbage = 48 << 20

func (c countedConn) Write(b []byte) (int, error) {
	if c.n.Load() > enoughGarbage {
		return 0, io.EOF
	}
	n, err := c.Conn.Write(b)
	c.n.Add(int64(n))
	return n, err
}

// zmtpGreeting is what a ZeroMQ publisher begins with, and its READY.
var zmtpGreeting = func() []byte {
	b := append([]byte{0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, 0}, "NULL"...)
	b = append(b, make([]byte, 64-len(b))...)
	ready := append([]byte("\x05READY\x0bSocket-Type\x00\x00\x00\x03"), "PUB"...)
	return append(append(b, 4, byte(len(ready))), ready...)
}()

// Whatever listens at the port of an engine's events, memory stays bounded and requests go on.
func TestGarbageInsteadOfEvents(t *testing.T) {
	t.Parallel()
	forever := func(c net.Conn, piece []byte) error {
		for {
			if _, err := c.Write(piece); err != nil {
				return err
			}
		}
	}
	noise := make([]byte, 64<<10)
	random := rand.New(rand.NewPCG(1, 2))
	for i := range noise {
		noise[i] = byte(random.Uint32())
	}
	kinds := []func(net.Conn) error{
		func(c net.Conn) error { return forever(c, noise) },
		func(c net.Conn) error { // a frame without end
			_, _ = c.Write(append(zmtpGreeting[:len(zmtpGreeting):len(zmtpGreeting)], 2, 0x40, 0, 0, 0, 0, 0, 0, 0))
			return forever(c, noise)
		},
		func(c net.Conn) error { // messages of more and more frames, each as long as is allowed
			_, _ = c.Write(zmtpGreeting)
			return forever(c, append([]byte{3, 0, 0, 0, 0, 0, 0, 0xf0, 0}, noise[:0xf000]...))
		},
		func(c net.Conn) error { // messages of three frames that mean nothing
			_, _ = c.Write(zmtpGreeting)
			return forever(c, bytes.Repeat([]byte("\x01\x02kv\x01\x03seq\x00\x05\x93\xcb\x41\xdb\xff"), 4000))
		},
		func(c net.Conn) error { return forever(c, []byte("HTTP/1.1 200 OK\r\n\r\n")) },
		func(c net.Conn) error { _, err := io.Copy(io.Discard, c); return err },
	}
	fleet := startSim(t, "--regular", fmt.Sprint(len(kinds)))
	servers := make([]*garbageServer, len(kinds))
	var config strings.Builder
	config.WriteString("workers:\n")
	for i, serve := range kinds {
		servers[i] = startGarbage(t, serve)
		_, port, _ := net.SplitHostPort(servers[i].addr)
		fmt.Fprintf(&config, "  - url: %s\n    labels: {kv_events_port: %q}\n", fleet.workers[i].URL, port)
	}
	file := filepath.Join(t.TempDir(), "sluice.yaml")
	if err := os.WriteFile(file, []byte(config.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	r := launchRouter(t, fleet, nil, nil, "--config", file)
	r.waitReady()
	r.waitFeeds("degraded")
	before := r.resident()
	eventually(t, "each has done its worst", func() string {
		r.ask(brief).good(t)
		for i, g := range servers[:5] {
			if g.conns.Load() < 3 && g.bytes.Load() < enoughGarbage {
				return fmt.Sprintf("%d: %d connections, %d bytes", i, g.conns.Load(), g.bytes.Load())
			}
		}
		return ""
	})
	if grown := r.resident() - before; before > 0 && grown > 64<<20 {
		t.Errorf("the router grew by %d MiB", grown>>20)
	}
	r.waitFeeds("degraded")
	if status, body := r.get("/readyz"); status != http.StatusOK {
		t.Errorf("not ready: %d %s", status, clip(body))
	}
	r.signal(syscall.SIGTERM) // while all of it goes on
	if code := r.exit(soon); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
