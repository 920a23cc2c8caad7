package e2e

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// resident is the memory of a process, in bytes.
func (p *process) resident() int64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", p.cmd.Process.Pid))
	if err != nil {
		p.t.Skip(err)
	}
	n, err := strconv.ParseInt(strings.Fields(string(b))[1], 10, 64)
	if err != nil {
		p.t.Fatal(err)
	}
	return n * int64(os.Getpagesize())
}

// watchMemory samples the memory of the router until stop, which returns how far it
// was at most over what --max-buffered-bytes and conns connections allow, and the
// peak.
func (r *router) watchMemory(buffered int64, conns *atomic.Int64) (stop func() (over, peak int64)) {
	quit, done := make(chan struct{}), make(chan struct{})
	var over, peak int64
	go func() {
		defer close(done)
		for {
			n := r.resident()
			peak = max(peak, n)
			over = max(over, n-buffered-64<<20-32<<10*conns.Load())
			select {
			case <-quit:
				return
			case <-time.After(5 * time.Millisecond):
			}
		}
	}()
	return func() (int64, int64) {
		close(quit)
		<-done
		return over, peak
	}
}

// Waves of waiting bodies of different sizes, each wave's clients gone before the
// next comes, must not hold more than the option says: memory of one size was kept
// beside that of the next. With SLUICE_E2E_FULL=1 the waves have their full size.
func TestMemoryIsWhatTheOptionSays(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's memory is not the router's")
	}
	t.Parallel()
	mib := int64(1) << 20
	if !full {
		mib = 256 << 10 // the same at a price that can be paid
	}
	limit := 256 * mib
	fleet := startSim(t)
	fleet.do("all", "timing", `{"prefill_time":"1h"}`)
	r := startRouter(t, fleet, "--prefill-max-inflight-requests-per-worker", "1", "--prefill-queue-size", "20000",
		"--max-buffered-bytes", fmt.Sprint(limit), "--max-payload-size", fmt.Sprint(limit), "--prefill-queue-timeout-secs", "600")
	holder := dialRaw(t, r.addr)
	holder.send(post("/v1/chat/completions", "holder", chatBody("")))
	r.waitLegs("holder", 2)
	start := r.resident()
	var conns atomic.Int64
	conns.Store(8)
	stop := r.watchMemory(limit, &conns)
	for _, wave := range []struct{ n, size int64 }{{30, 8}, {60, 4}, {15, 16}, {120, 2}, {7, 32}, {240, 1}, {3, 64}, {30, 8}, {15, 16}} {
		body := chatBody(`"pad":"` + strings.Repeat("x", int(wave.size*mib-1000)) + `",`)
		conns.Store(8 + wave.n)
		var all []*rawConn
		for i := range wave.n {
			c := dialRaw(t, r.addr)
			c.send(post("/v1/chat/completions", fmt.Sprintf("wave-%d", i), body))
			all = append(all, c)
		}
		eventually(t, "the wave waits", func() string {
			if v := r.metric("sluice_buffered_bytes"); int64(v) < wave.n*(wave.size*mib-1000) {
				return fmt.Sprint(v)
			}
			return ""
		})
		for _, c := range all {
			_ = c.Close()
		}
		eventually(t, "the wave has left", func() string {
			if v := r.metric("sluice_buffered_bytes"); v > float64(mib) {
				return fmt.Sprint(v)
			}
			return ""
		})
	}
	over, peak := stop()
	t.Logf("start %d MiB, peak %d MiB, limit %d MiB", start>>20, peak>>20, limit>>20)
	if over > 0 {
		t.Errorf("the router held %d MiB more than --max-buffered-bytes, 64 MiB and 32 KiB a connection", over>>20)
	}
	eventually(t, "the memory comes back", func() string {
		if n := r.resident(); n > start+32<<20 {
			return fmt.Sprintf("%d MiB, at the start %d MiB", n>>20, start>>20)
		}
		return ""
	})
	_ = holder.Close()
}

// A mix of bodies, translated ones among them, that are served as fast as it goes.
func TestMemoryUnderAMixOfBodies(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector's memory is not the router's")
	}
	t.Parallel()
	requests, largest := 300, 2<<20
	if full {
		requests, largest = 20000, 16<<20
	}
	const limit = 64 << 20
	fleet := startSim(t)
	r := startRouter(t, fleet, "--max-buffered-bytes", fmt.Sprint(limit), "--max-payload-size", fmt.Sprint(largest+4096))
	var conns atomic.Int64
	conns.Store(40)
	stop := r.watchMemory(limit, &conns)
	client := clients(t)
	var next atomic.Int64
	var clientsDone sync.WaitGroup
	pad := strings.Repeat("x", largest)
	for range 12 {
		clientsDone.Go(func() {
			for i := next.Add(1); i <= int64(requests); i = next.Add(1) {
				size := 1 << 10
				for k := i % 15; k > 0 && size < largest; k-- {
					size *= 2
				}
				path, body := "/v1/chat/completions", chatBody(`"pad":"`+pad[:size]+`",`)
				if i%3 == 0 {
					path, body = "/v1/responses", `{"model":"sim-model","max_output_tokens":2,"input":"`+pad[:size]+`"}`
				}
				a := send(client, "POST", r.url()+path, body).wait(t)
				if a.status != 200 && a.code() != "buffer_full" {
					t.Errorf("status %d %s", a.status, a.code())
				}
			}
		})
	}
	clientsDone.Wait()
	over, peak := stop()
	t.Logf("peak %d MiB, limit %d MiB", peak>>20, limit>>20)
	if over > 0 {
		t.Errorf("the router held %d MiB more than --max-buffered-bytes, 64 MiB and 32 KiB a connection", over>>20)
	}
}
