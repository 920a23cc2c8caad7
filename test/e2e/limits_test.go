package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// A client that reads nothing is given up after the write timeout; until then it
// costs nobody else anything.
func TestClientThatReadsNothing(t *testing.T) {
	t.Parallel()
	fleet := startSim(t)
	r := startRouter(t, fleet, "--client-write-timeout-secs", "2")
	var stuck []*rawConn
	for i := range 5 {
		c := dialRaw(t, r.addr)
		if err := c.SetReadBuffer(4 << 10); err != nil {
			t.Fatal(err)
		}
		// More than all buffers between can take.
		c.send(post("/v1/chat/completions", fmt.Sprintf("stuck-%d", i), chatBody(streamed+`"max_tokens":4000,"sim":"on=decode,token_size=16384",`)))
		stuck = append(stuck, c)
	}
	fleet.waitStats("decode-0", "has them", func(s sim.Stats) bool { return s.Requests >= len(stuck) })
	client := clients(t)
	deadline := time.Now().Add(patience)
	for n := 0; fleet.stats("decode-0").Gone < len(stuck); n++ {
		if time.Now().After(deadline) {
			t.Fatalf("the clients that read nothing are still served: %+v", fleet.stats("decode-0"))
		}
		a := r.chat(client, streamed).wait(t)
		a.good(t)
		if a.took > soon {
			t.Errorf("another client waited %s", a.took)
		}
	}
	if line := r.accessLine("stuck-0"); line["reason"] != "client_gone" {
		t.Errorf("access line %v", line)
	}
	r.idle()
}

// A client that sends its request slower than any person types is given up too.
func TestClientThatSendsNothing(t *testing.T) {
	t.Parallel()
	r := startRouter(t, startSim(t), "--client-header-timeout-secs", "1", "--client-body-timeout-secs", "1")
	head := dialRaw(t, r.addr)
	head.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
	body := dialRaw(t, r.addr)
	body.send("POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{")
	a := body.answer()
	a.refused(t, 408, "request_timeout")
	start := time.Now()
	if _, err := head.in.ReadString(0); err == nil || time.Since(start) > soon {
		t.Errorf("half a head is still waited for: %v", err)
	}
	r.ask(brief).good(t)
}

// More streams than the file limit allows: those beyond it are refused, the process
// lives and answers its probes, and afterwards all is as before
// (vllm-project/production-stack#448: the router shut down).
func TestMoreStreamsThanFiles(t *testing.T) {
	files, streams := 1024, 2000
	if raceEnabled {
		files, streams = 512, 1000 // the same relation at a price that can be paid
	}
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil || limit.Cur < uint64(2*streams+500) {
		t.Skipf("this process may open %d files only (%v)", limit.Cur, err)
	}
	fleet := startSim(t)
	fleet.do("all", "timing", `{"decode_step":"200ms","output_tokens":10}`)
	r := launchRouter(t, fleet, nil, []string{"sh", "-c", fmt.Sprintf(`ulimit -n %d; exec "$0" "$@"`, files)}, fleet.flags()...)
	r.waitReady()
	if v := r.metric("sluice_open_files_limit"); v != float64(files) {
		t.Fatalf("the limit is %v files, want %d", v, files)
	}
	client := clients(t)
	client.Timeout = time.Minute

	// A kubelet's probe: three failures in a row restart the process. On a busy machine a
	// single one may fail, as clients do: its connection is evicted when it gets to run so late
	// that it has been idle for long, or has not sent its request yet.
	var alive, failed, dead atomic.Int64
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for inRow := 0; ; {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
			}
			if status, said := r.get("/livez"); status == 200 {
				alive.Add(1)
				inRow = 0
			} else {
				t.Logf("livez: %d %s", status, said)
				failed.Add(1)
				if inRow++; inRow == 3 {
					dead.Add(1)
				}
			}
		}
	}()
	var calls []*call
	for range streams {
		calls = append(calls, r.chat(client, streamed))
	}
	served, refused, cut := 0, 0, 0
	for _, c := range calls {
		switch a := c.wait(t); {
		case a.whole():
			served++
		case a.status == 503 && a.header.Get("Retry-After") != "":
			refused++
		case a.status == 0:
			cut++
		default:
			t.Errorf("neither served nor refused: %s", a)
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d served, %d refused, %d without an answer; livez answered %d times, not %d times", served, refused, cut, alive.Load(), failed.Load())
	if served < 100 || refused == 0 {
		t.Errorf("%d served and %d refused", served, refused)
	}
	// On a busy machine a client may be told that there is no room before it has sent
	// its request, and take that for no answer.
	if evicted := int(r.metric("sluice_client_connections_evicted_total")); cut > evicted {
		t.Errorf("%d clients got no answer at all, and %d connections made room", cut, evicted)
	}
	if dead.Load() > 0 {
		t.Errorf("liveness was not answered three times in a row")
	}
	client.CloseIdleConnections()
	r.idle()
	for _, w := range r.workers() {
		if !w.Healthy || w.Breaker != "closed" {
			t.Errorf("a worker is blamed for the router's own limit: %+v", w)
		}
	}
	for range 20 {
		r.chat(client, streamed+brief).wait(t).good(t)
	}

	if !full {
		return
	}
	sane := startRouter(t, fleet)
	calls = calls[:0]
	for range streams {
		calls = append(calls, sane.chat(client, streamed))
	}
	for _, c := range calls {
		c.wait(t).good(t)
	}
}

// A standard error that nobody reads must never stall a request: a pipe to a log
// collector that hangs holds 64 KiB.
func TestBlockedStderr(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	fleet := startSim(t)
	args := append([]string{"serve", "--pre-drain-wait", "0", "--host", "127.0.0.1", "--port", "0", "--prometheus-host", "127.0.0.1", "--prometheus-port", "0", "--log-json", "--log-level", "debug"}, quickHealth...)
	r := &router{fleet: fleet, process: spawnWith(t, func(cmd *exec.Cmd) { cmd.Stderr = writer }, nil, append(args, fleet.flags()...)...)}
	_ = writer.Close()
	t.Cleanup(r.finish)
	// Until it tells its addresses it is read, and never again.
	var text strings.Builder
	b := make([]byte, 1)
	for !strings.Contains(text.String(), `"msg":"serving"`) || b[0] != '\n' {
		if _, err := reader.Read(b); err != nil {
			t.Fatalf("%v: %s", err, text.String())
		}
		text.Write(b)
	}
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	r.read(lines[len(lines)-1])
	r.waitReady()
	client := clients(t)
	// The pipe's 64 KiB and what the log may hold back, many times over.
	long := "/" + strings.Repeat("x", 1000)
	eventually(t, "lines are dropped", func() string {
		var calls []*call
		for range 200 {
			calls = append(calls, send(client, "POST", r.url()+long, "{}", "X-Request-Id", strings.Repeat("i", 128)))
		}
		for _, c := range calls {
			if a := c.wait(t); a.status != 404 || a.took > soon {
				t.Fatalf("%s", a)
			}
		}
		if v := r.metric("sluice_log_lines_dropped_total"); v == 0 {
			return fmt.Sprint(v)
		}
		return ""
	})
	for range 200 {
		if a := r.chat(client, streamed+brief).wait(t); !a.whole() || a.took > soon {
			t.Fatalf("%s", a)
		}
	}
	r.idle()
	r.over = true
	start := time.Now()
	r.signal(syscall.SIGTERM)
	if code := r.exit(patience); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	if d := took(start); d > soon {
		t.Errorf("the end took %s", d)
	}
}

// The reader of the log has gone: no SIGPIPE ends the router.
func TestClosedStderr(t *testing.T) {
	t.Parallel()
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	fleet := startSim(t, "--prefill", "0", "--decode", "0", "--regular", "1")
	ports := freePorts(t, 2)
	args := []string{"serve", "--pre-drain-wait", "0", "--host", "127.0.0.1", "--port", ports[0], "--prometheus-host", "127.0.0.1", "--prometheus-port", ports[1]}
	r := &router{fleet: fleet, addr: "127.0.0.1:" + ports[0], metrics: "127.0.0.1:" + ports[1]}
	r.process = spawnWith(t, func(cmd *exec.Cmd) { cmd.Stderr = writer }, nil, append(append(args, quickHealth...), fleet.flags()...)...)
	_, _ = writer.Close(), reader.Close()
	t.Cleanup(r.finish)
	eventually(t, "it serves", func() string {
		if status, body := r.get("/readyz"); status != 200 {
			return fmt.Sprint(status, body)
		}
		return ""
	})
	for range 20 {
		r.ask(brief).good(t)
	}
}
