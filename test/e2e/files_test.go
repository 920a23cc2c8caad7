package e2e

import (
	"io"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// fewFiles starts a router that may open 256 files and waits for its clients as good as
// for ever.
func fewFiles(t *testing.T) *router {
	fleet := startSim(t)
	r := launchRouter(t, fleet, nil, []string{"sh", "-c", `ulimit -n 256; exec "$0" "$@"`}, append(fleet.flags(),
		"--client-header-timeout-secs", "3600", "--client-body-timeout-secs", "3600", "--client-idle-timeout-secs", "3600")...)
	r.waitReady()
	return r
}

// served checks that probes, scrapes and a request on new connections are answered.
func (r *router) served(t *testing.T) {
	t.Helper()
	r.probed(t)
	r.ask(brief).good(t)
}

// probed checks that probes and scrapes on new connections are answered.
func (r *router) probed(t *testing.T) {
	t.Helper()
	for _, url := range []string{r.url() + "/livez", r.url() + "/readyz", "http://" + r.metrics + "/metrics"} {
		start := time.Now()
		if status, body := get(url); status != 200 || time.Since(start) > soon {
			t.Errorf("%s: %d %s after %s", url, status, clip(body), time.Since(start))
		}
	}
}

// servedAgain is served for clients that try again when they are told to: on a busy machine
// a flood may look like a burst of clients for some time.
func (r *router) servedAgain(t *testing.T) {
	t.Helper()
	for try := 1; ; try++ {
		a := r.ask(brief)
		if a.status != 503 || a.header.Get("Retry-After") == "" || try == 5 {
			a.good(t)
			break
		}
		time.Sleep(time.Second)
	}
	r.probed(t)
}

// Connections on which no request runs must not keep probes, scrapes and requests from being
// answered, whatever they have sent.
func TestIdleConnectionsAndFewFiles(t *testing.T) {
	t.Parallel()
	const head = " HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 500\r\n"
	for name, first := range map[string]string{
		"silent":      "",
		"half a head": "GET /livez HT",
		"idle":        "GET /livez HTTP/1.1\r\nHost: x\r\n\r\n",
		"half a body": "POST /v1/chat/completions" + head + "\r\n{",
		"refused":     "POST /nowhere" + head + "\r\n{",
		"held back":   "POST /v1/chat/completions" + head + "Expect: 100-continue\r\n\r\n",
		"reads none":  strings.Repeat("GET /workers HTTP/1.1\r\nHost: x\r\n\r\n", 200),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := fewFiles(t)
			if !strings.Contains(r.stderr.String(), "good for about 74 requests at once") {
				t.Error("the log does not tell what 256 files are good for")
			}
			client := clients(t)
			running := r.chat(client, streamed+`"max_tokens":50,"sim":"on=decode,event_delay=20ms",`)
			r.fleet.waitStats("decode-0", "runs it", func(s sim.Stats) bool { return s.Requests > 0 })
			for _, addr := range []string{r.addr, r.metrics} {
				for range 300 {
					c := dialRaw(t, addr)
					_, _ = c.Write([]byte(first)) // closed for another one, perhaps
				}
			}
			for range 5 {
				r.served(t)
			}
			running.wait(t).good(t)
			if n := r.metric("sluice_client_connections_evicted_total"); n < 50 {
				t.Errorf("%v connections were closed to make room", n)
			}
		})
	}
}

// New connections that come all the time and send nothing are never idle for long. They
// give way to those that send something.
func TestFloodOfSilentConnectionsAndFewFiles(t *testing.T) {
	t.Parallel()
	r := fewFiles(t)
	client := clients(t)
	running := r.chat(client, streamed+`"max_tokens":100,"sim":"on=decode,event_delay=20ms",`)
	var (
		stop    = make(chan struct{})
		flood   sync.WaitGroup
		dialled atomic.Int64
	)
	for range 4 {
		flood.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				c, err := net.DialTimeout("tcp", r.addr, patience)
				if err != nil {
					continue
				}
				dialled.Add(1)
				// Held until the router ends it.
				flood.Go(func() {
					defer c.Close()
					_ = c.SetReadDeadline(time.Now().Add(patience))
					go func() {
						<-stop
						_ = c.SetReadDeadline(time.Now())
					}()
					_, _ = io.Copy(io.Discard, c)
				})
				time.Sleep(5 * time.Millisecond)
			}
		})
	}
	eventually(t, "the files are used up", func() string {
		if dialled.Load() < 300 {
			return "not yet"
		}
		return ""
	})
	for range 10 {
		r.servedAgain(t)
	}
	running.wait(t).good(t)
	close(stop)
	flood.Wait()
	for range 5 {
		r.served(t)
	}
}
