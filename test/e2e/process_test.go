package e2e

import (
	"bufio"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// starts are the processes that spawner is to start.
var starts chan start

type start struct {
	cmd *exec.Cmd
	err chan error
}

// startSpawner starts the goroutine that starts all processes. It stays on one
// thread, because the children end with the thread that started them.
func startSpawner() (stop func()) {
	starts = make(chan start)
	go func() {
		runtime.LockOSThread()
		for s := range starts {
			s.err <- s.cmd.Start()
		}
	}()
	return func() { close(starts) }
}

// process is a started sluice.
type process struct {
	t    testing.TB
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended and all it printed was read

	stdout, stderr lines
}

// lines collects what a process prints.
type lines struct {
	mu sync.Mutex
	// guarded by mu
	list []string
	more chan struct{} // closed and replaced at each line
}

const maxLines = 100_000

func (l *lines) read(r io.Reader) {
	in := bufio.NewReaderSize(r, 64<<10)
	for {
		s, err := in.ReadString('\n')
		if s != "" {
			l.mu.Lock()
			if len(l.list) < maxLines {
				l.list = append(l.list, strings.TrimRight(s, "\n"))
			}
			if l.more != nil {
				close(l.more)
				l.more = nil
			}
			l.mu.Unlock()
		}
		if err != nil {
			return
		}
	}
}

func (l *lines) all() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.list[:len(l.list):len(l.list)]
}

func (l *lines) String() string { return strings.Join(l.all(), "\n") }

// wait returns the first line of which take says true.
func (l *lines) wait(limit time.Duration, done <-chan struct{}, take func(string) bool) (string, bool) {
	timer := time.NewTimer(limit)
	defer timer.Stop()
	ended := false
	for from := 0; ; {
		l.mu.Lock()
		list := l.list
		if l.more == nil {
			l.more = make(chan struct{})
		}
		more := l.more
		l.mu.Unlock()
		for ; from < len(list); from++ {
			if take(list[from]) {
				return list[from], true
			}
		}
		if ended {
			return "", false
		}
		select {
		case <-more:
		case <-done:
			ended = true
		case <-timer.C:
			return "", false
		}
	}
}

// environment is the tests' own without what would configure sluice.
func environment() []string {
	var env []string
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "SLUICE_") {
			env = append(env, e)
		}
	}
	if stack != "" {
		env = append(env, "SLUICE_HTTP_STACK="+stack)
	}
	return append(env, "TERM=dumb")
}

// spawn starts sluice, or what prefix makes of its command line, and ends it
// with the test.
func spawn(t testing.TB, prefix []string, args ...string) *process {
	t.Helper()
	return spawnWith(t, nil, prefix, args...)
}

func spawnWith(t testing.TB, prepare func(*exec.Cmd), prefix []string, args ...string) *process {
	t.Helper()
	argv := append(append(append([]string{}, prefix...), binary), args...)
	p := &process{t: t, cmd: exec.Command(argv[0], argv[1:]...), done: make(chan struct{})}
	p.cmd.Env = environment()
	p.cmd.SysProcAttr = childAttributes()
	p.cmd.WaitDelay = 5 * time.Second
	outR, outW := io.Pipe()
	errR, errW := io.Pipe()
	p.cmd.Stdout, p.cmd.Stderr = outW, errW
	if prepare != nil {
		prepare(p.cmd)
	}
	s := start{p.cmd, make(chan error, 1)}
	starts <- s
	if err := <-s.err; err != nil {
		t.Fatalf("cannot start %s: %v", strings.Join(argv, " "), err)
	}
	var reading sync.WaitGroup
	reading.Go(func() { p.stdout.read(outR) })
	reading.Go(func() { p.stderr.read(errR) })
	go func() {
		_ = p.cmd.Wait() // its state tells
		_, _ = outW.Close(), errW.Close()
		reading.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		if p.running() {
			p.kill()
		}
		if t.Failed() {
			t.Logf("%s %s, stderr:\n%s", binary, strings.Join(args, " "), tail(p.stderr.all(), 60))
		}
	})
	return p
}

// tail is the end of a log, without the lines of what went well.
func tail(list []string, n int) string {
	list = slices.DeleteFunc(slices.Clone(list), func(line string) bool {
		return strings.Contains(line, `"msg":"request"`) && strings.Contains(line, `"reason":"ok"`) && !strings.Contains(line, `"attempts":2`)
	})
	if len(list) > n {
		list = append([]string{"…"}, list[len(list)-n:]...)
	}
	return strings.Join(list, "\n")
}

func (p *process) running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// kill ends the process and its group, and waits for it.
func (p *process) kill() {
	_ = syscall.Kill(-p.cmd.Process.Pid, syscall.SIGKILL) // or it has just ended
	<-p.done
}

func (p *process) signal(s syscall.Signal) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		p.t.Errorf("cannot signal: %v", err)
	}
}

// exit waits for the process's end and returns its exit code.
func (p *process) exit(limit time.Duration) int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(limit):
		p.signal(syscall.SIGQUIT) // its goroutines are in the log then
		select {
		case <-p.done:
		case <-time.After(5 * time.Second):
		}
		p.t.Fatalf("the process did not end within %s", limit)
	}
	return p.cmd.ProcessState.ExitCode()
}

// sluice runs a command to its end.
func sluice(t testing.TB, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	p := spawn(t, nil, args...)
	code = p.exit(patience)
	return code, p.stdout.String(), p.stderr.String()
}
