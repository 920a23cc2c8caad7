package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// proxy is HAProxy: a general proxy in C, as the measure of what passing requests
// on costs at all. It knows nothing of engines, so it takes part where workers
// run whole requests.
const proxy = "haproxy"

// findProxy returns HAProxy's command: the one named, or with "auto" the one on
// PATH, which Debian's package haproxy installs.
func findProxy(where string) (string, error) {
	if where == "auto" {
		where = proxy
	}
	bin, err := exec.LookPath(where)
	if err != nil {
		return "", fmt.Errorf("cannot find HAProxy (apt-get install haproxy): %w", err)
	}
	return bin, nil
}

// proxyVersion is the first line of "haproxy -v".
func proxyVersion(ctx context.Context, bin string) string {
	out, err := exec.CommandContext(ctx, bin, "-v").Output()
	if err != nil {
		return "HAProxy of unknown version"
	}
	line, _, _ := strings.Cut(string(out), "\n")
	line, _, _ = strings.Cut(line, " - ")
	return line
}

// startProxy starts HAProxy before whole-request workers, with round robin,
// connections that are kept and shared, and health checks as often as the routers
// make them. It passes events on as they come: without http-no-delay it holds an
// answer back to send it in few pieces, and its first byte comes with the last.
func startProxy(ctx context.Context, s *spawner, bin string, cpus []int, f *simFleet) (*router, error) {
	ports, err := freePorts(1)
	if err != nil {
		return nil, err
	}
	addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))
	var b strings.Builder
	fmt.Fprintf(&b, "global\n  maxconn 4000\ndefaults\n  mode http\n  option http-keep-alive\n  option http-no-delay\n  http-reuse always\n"+
		"  timeout connect 5s\n  timeout client 300s\n  timeout server 300s\nfrontend clients\n  bind %s\n  default_backend engines\n"+
		"backend engines\n  balance roundrobin\n  option httpchk GET /health\n", addr)
	for i, w := range f.regular {
		fmt.Fprintf(&b, "  server engine-%d %s check inter %d\n", i, strings.TrimPrefix(w.url, "http://"), healthInterval.Milliseconds())
	}
	file := filepath.Join(s.dir, "haproxy.cfg")
	if err := os.WriteFile(file, []byte(b.String()), 0o600); err != nil {
		return nil, fmt.Errorf("cannot write HAProxy's configuration: %w", err)
	}
	proc, err := s.run(proxy, cpus, nil, bin, "-db", "-f", file)
	if err != nil {
		return nil, err
	}
	r := &router{name: proxy, proc: proc, addr: addr}
	err = proc.await(ctx, time.Minute, func(ctx context.Context) error {
		var models map[string]any
		return ask(ctx, "GET", "http://"+addr+"/v1/models", "", &models)
	})
	if err != nil {
		proc.stop()
		return nil, err
	}
	return r, nil
}
