package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"
)

// Names of the targets.
const (
	ours   = "sluice"
	peer   = "smg"
	direct = "direct"
)

// routerOptions are those both routers have, by the same names.
type routerOptions struct {
	policy   string
	inflight int // per prefill worker; 0 leaves admission off
	logLevel string
	extra    []string // further options, of ours
}

// healthInterval is given to both routers, whose defaults differ.
const healthInterval = 5 * time.Second

// router is a running router.
type router struct {
	name string
	addr string
	proc *process
}

func (r *router) target() target { return routerTarget(r.name, r.addr, r.proc) }

// startRouter starts "sluice serve" or "smg launch" before the fleet and waits
// until it calls all workers healthy.
func startRouter(ctx context.Context, s *spawner, name, bin string, cpus []int, f *simFleet, o routerOptions) (*router, error) {
	ports, err := freePorts(2)
	if err != nil {
		return nil, err
	}
	args := []string{"serve"}
	if name == peer {
		args = []string{"launch"}
	}
	args = append(args, "--host", "127.0.0.1", "--port", strconv.Itoa(ports[0]),
		"--prometheus-host", "127.0.0.1", "--prometheus-port", strconv.Itoa(ports[1]),
		"--policy", o.policy, "--log-level", o.logLevel,
		"--health-check-interval-secs", strconv.Itoa(int(healthInterval/time.Second)))
	if o.inflight > 0 {
		args = append(args, "--prefill-max-inflight-requests-per-worker", strconv.Itoa(o.inflight))
	}
	args = append(args, o.extra...)
	workers := len(f.prefill) + len(f.decode) + len(f.regular)
	if len(f.prefill) > 0 {
		args = append(args, "--pd-disaggregation")
		for _, w := range f.prefill {
			args = append(args, "--prefill", w.url)
			if !f.grpc {
				args = append(args, strconv.Itoa(w.bootstrapPort))
			}
		}
		for _, w := range f.decode {
			args = append(args, "--decode", w.url)
		}
	} else {
		args = append(args, "--worker-urls")
		for _, w := range f.regular {
			args = append(args, w.url)
		}
	}
	proc, err := s.run(name, cpus, nil, bin, args...)
	if err != nil {
		return nil, err
	}
	r := &router{name: name, proc: proc, addr: net.JoinHostPort("127.0.0.1", strconv.Itoa(ports[0]))}
	err = proc.await(ctx, 2*time.Minute, func(ctx context.Context) error { return r.ready(ctx, workers, f.grpc) })
	if err != nil {
		proc.stop()
		return nil, err
	}
	return r, nil
}

// ready asks the router's list of workers, which both routers have in the same
// form. A worker by gRPC may be healthy before its tokenizer is read, so that only
// an answer tells.
func (r *router) ready(ctx context.Context, workers int, grpc bool) error {
	var list struct {
		Workers []struct {
			Healthy bool `json:"is_healthy"`
		} `json:"workers"`
	}
	if err := ask(ctx, http.MethodGet, "http://"+r.addr+"/workers", "", &list); err != nil {
		return err
	}
	healthy := 0
	for _, w := range list.Workers {
		if w.Healthy {
			healthy++
		}
	}
	if healthy < workers {
		return fmt.Errorf("%d of %d workers are healthy", healthy, workers)
	}
	if grpc {
		return ask(ctx, http.MethodPost, "http://"+r.addr+"/v1/chat/completions", shape{tokens: 1}.body(""), nil)
	}
	return nil
}

// freePorts finds ports that nobody listens on right now.
func freePorts(n int) ([]int, error) {
	ports := make([]int, n)
	for i := range ports {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, fmt.Errorf("cannot find a free port: %w", err)
		}
		defer l.Close()
		ports[i] = l.Addr().(*net.TCPAddr).Port
	}
	return ports, nil
}

// buildOurs compiles sluice into dir. The module is the one the program is run
// in.
func buildOurs(ctx context.Context, dir string) (string, error) {
	bin := filepath.Join(dir, "sluice")
	cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-o", bin, "github.com/sluice-router/sluice/cmd/sluice")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build sluice: %w: %s", err, out)
	}
	return bin, nil
}

const peerVersion = "1.13.0"

// findPeer returns the peer's command: the one named, the one in the virtual
// environment named, or with "auto" one installed under the temporary
// directory, where a later run finds it again.
func findPeer(ctx context.Context, where string) (string, error) {
	if where != "auto" {
		if s, err := os.Stat(where); err != nil {
			return "", fmt.Errorf("cannot use -peer-smg %s: %w", where, err)
		} else if !s.IsDir() {
			return where, nil
		}
		return filepath.Join(where, "bin", "smg"), nil
	}
	venv := filepath.Join(os.TempDir(), "sluice-bench-smg-"+peerVersion)
	bin := filepath.Join(venv, "bin", "smg")
	if _, err := os.Stat(bin); err == nil {
		return bin, nil
	} else if !errors.Is(err, os.ErrNotExist) {
		return "", fmt.Errorf("cannot look for smg: %w", err)
	}
	for _, args := range [][]string{
		{"python3", "-m", "venv", venv},
		{filepath.Join(venv, "bin", "pip"), "install", "--quiet", "smg==" + peerVersion},
	} {
		if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
			return "", fmt.Errorf("cannot install smg %s (%v): %w: %s", peerVersion, args, err, out)
		}
	}
	return bin, nil
}
