package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
)

// engineMemory is about what one engine takes, in bytes.
const engineMemory = 3 << 30

// Engine is a vLLM that runs in a process group of its own. It outlives the
// program that started it: a file in the run folder tells the next one of it.
type Engine struct {
	Spec
	home  Home
	pid   int
	start string // in ticks since boot: a pid alone may be another process by now
}

func (h Home) runFile(role Role, suffix string) string {
	return h.path("run", string(role)+suffix)
}

// Find returns the engine of that role that an earlier program left running, nil
// if there is none.
func (h Home) Find(role Role) (*Engine, error) {
	b, err := os.ReadFile(h.runFile(role, ".pid"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot tell whether %s runs: %w", role, err)
	}
	e := &Engine{home: h, Spec: Spec{Role: role}}
	if _, err := fmt.Sscan(string(b), &e.pid, &e.start, &e.Port, &e.SideChannel); err != nil || e.pid < 2 {
		return nil, fmt.Errorf("cannot read %s: %q", h.runFile(role, ".pid"), b)
	}
	if started(e.pid) != e.start {
		return nil, nil
	}
	return e, nil
}

// Start starts an engine and does not wait until it is ready.
func (h Home) Start(s Spec) (*Engine, error) {
	if !h.Installed() {
		return nil, fmt.Errorf("vLLM is not installed in %s: run test/real-engine/install.sh", h)
	}
	if free := memoryAvailable(); free > 0 && free < engineMemory {
		return nil, fmt.Errorf("cannot start %s: %d MiB of memory are available and it takes about %d", s.Role, free>>20, engineMemory>>20)
	}
	for _, port := range []int{s.Port, s.SideChannel, s.EventsPort(), s.ReplayPort()} {
		if err := portFree(port); err != nil {
			return nil, fmt.Errorf("cannot start %s: %w (REAL_ENGINE_PORT moves all ports)", s.Role, err)
		}
	}
	if err := os.MkdirAll(h.path("run"), 0o755); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", s.Role, err)
	}
	log, err := os.Create(h.runFile(s.Role, ".log"))
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", s.Role, err)
	}
	defer log.Close()
	argv := s.command(h)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = s.environment(h)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", s.Role, err)
	}
	e := &Engine{Spec: s, home: h, pid: cmd.Process.Pid, start: started(cmd.Process.Pid)}
	go func() { _ = cmd.Wait() }() // so that it is no zombie while this program lives
	note := fmt.Sprintln(e.pid, e.start, e.Port, e.SideChannel)
	if err := os.WriteFile(h.runFile(s.Role, ".pid"), []byte(note), 0o644); err != nil {
		e.Kill()
		return nil, fmt.Errorf("cannot note that %s runs: %w", s.Role, err)
	}
	return e, nil
}

// portFree says what holds a port. Closed connections of an engine that has just
// ended do not: those it would reuse.
func portFree(port int) error {
	if port == 0 {
		return nil
	}
	l, err := net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return err
	}
	return l.Close()
}

// WaitReady waits until the engine says that it is healthy.
func (e *Engine) WaitReady(ctx context.Context) error {
	healthy := e.healthy
	if e.Role.GRPC() {
		conn, err := e.Dial()
		if err != nil {
			return err
		}
		defer conn.Close()
		healthy = func(ctx context.Context) bool { return grpcHealthy(ctx, conn) }
	}
	for {
		asked, cancel := context.WithTimeout(ctx, 5*time.Second)
		ok := healthy(asked)
		cancel()
		if ok {
			return nil
		}
		if !e.Running() {
			return fmt.Errorf("%s ended while it started; the end of its log:\n%s", e.Role, e.LogTail(40))
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready: %w; the end of its log:\n%s", e.Role, ctx.Err(), e.LogTail(15))
		case <-time.After(300 * time.Millisecond):
		}
	}
}

// healthy tells whether the engine's HTTP server says that it is.
func (e *Engine) healthy(ctx context.Context) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, e.URL()+"/health", nil)
	if err != nil {
		return false
	}
	req.Close = true
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return false
	}
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 1<<16))
	_ = resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}

// Dial opens a connection to an engine that is spoken to by gRPC.
func (e *Engine) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:"+e.addr(), grpc.WithTransportCredentials(insecure.NewCredentials()))
}

// grpcHealthy tells whether the engine behind a connection says that it serves.
func grpcHealthy(ctx context.Context, conn *grpc.ClientConn) bool {
	answer, err := grpc_health_v1.NewHealthClient(conn).Check(ctx, &grpc_health_v1.HealthCheckRequest{})
	return err == nil && answer.Status == grpc_health_v1.HealthCheckResponse_SERVING
}

// Running tells whether the process lives.
func (e *Engine) Running() bool { return e.start != "" && started(e.pid) == e.start }

// Signal signals the engine's API server alone, as a supervisor does.
func (e *Engine) Signal(s syscall.Signal) error {
	if !e.Running() {
		return fmt.Errorf("%s does not run", e.Role)
	}
	return syscall.Kill(e.pid, s)
}

// SignalAll signals all processes of the engine.
func (e *Engine) SignalAll(s syscall.Signal) error { return syscall.Kill(-e.pid, s) }

// Stop ends the engine: politely, and after a while not.
func (e *Engine) Stop() {
	if e.Running() {
		_ = e.SignalAll(syscall.SIGCONT) // or it has ended
		_ = e.Signal(syscall.SIGTERM)
		e.waitGone(10 * time.Second)
	}
	e.Kill()
}

// Kill ends all processes of the engine at once and waits for their end.
func (e *Engine) Kill() {
	// The engine core outlives a killed API server for a moment, in the same group.
	for range 100 {
		if err := e.SignalAll(syscall.SIGKILL); err != nil {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	_ = os.Remove(e.home.runFile(e.Role, ".pid"))
}

func (e *Engine) waitGone(limit time.Duration) {
	for end := time.Now().Add(limit); e.Running() && time.Now().Before(end); {
		time.Sleep(100 * time.Millisecond)
	}
}

// LogTail is the end of what the engine printed.
func (e *Engine) LogTail(lines int) string {
	b, err := os.ReadFile(e.home.runFile(e.Role, ".log"))
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// started is when a process was started, in ticks since boot, "" for one that has
// ended: field 22 of /proc/PID/stat.
func started(pid int) string {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return ""
	}
	s := string(b)
	fields := strings.Fields(s[strings.LastIndexByte(s, ')')+1:]) // the name may hold anything
	if len(fields) < 20 || fields[0] == "Z" || fields[0] == "X" {
		return ""
	}
	return fields[19]
}

// memoryAvailable is what /proc/meminfo calls so, in bytes; 0: not known.
func memoryAvailable() int64 {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemAvailable:" {
			kib, _ := strconv.ParseInt(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}
