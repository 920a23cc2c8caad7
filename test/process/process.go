// Package process starts programs for tests: servers that end with the test, can be frozen
// and killed, and tell the end of what they printed.
package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that was started and ends with this one, however this one ends.
type Process struct {
	name string
	log  string // the file of all that it prints
	cmd  *exec.Cmd
	done chan struct{} // closed when it has ended
}

type start struct {
	cmd *exec.Cmd
	err chan error
}

// spawner is the goroutine that starts all processes. It stays on one thread, because
// the kernel ends the children with the thread that started them.
var spawner = sync.OnceValue(func() chan<- start {
	starts := make(chan start)
	go spawn(starts)
	return starts
})

// Spawner is the function of a goroutine that stays when all processes have ended, for
// checks of leaks.
const Spawner = "github.com/sluice-router/sluice/test/process.spawn"

func spawn(starts <-chan start) {
	runtime.LockOSThread()
	for s := range starts {
		s.err <- s.cmd.Start()
	}
}

// Start starts a program whose output goes to dir/name.log, behind what an
// earlier one of that name has left there.
func Start(dir, name string, env []string, argv ...string) (*Process, error) {
	p := &Process{name: name, log: filepath.Join(dir, name+".log"), done: make(chan struct{})}
	log, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	defer log.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Env = env
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = childAttributes()
	s := start{p.cmd, make(chan error, 1)}
	spawner() <- s
	if err := <-s.err; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait() // its state tells
		close(p.done)
	}()
	return p, nil
}

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// ExitCode is that of a process that has ended, -1 if a signal ended it.
func (p *Process) ExitCode() int { return p.cmd.ProcessState.ExitCode() }

// Log is the file of all that the process prints.
func (p *Process) Log() string { return p.log }

// Running tells whether the process lives.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Signal sends a signal; one to a process that has ended is lost.
func (p *Process) Signal(s syscall.Signal) error {
	if err := p.cmd.Process.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("cannot signal %s: %w", p.name, err)
	}
	return nil
}

// Freeze stops the process where it is: its connections stay and are silent. It returns
// when all its threads have stopped.
func (p *Process) Freeze() error {
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	for end := time.Now().Add(10 * time.Second); p.Running() && !stopped(p.cmd.Process.Pid); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("%s does not stop", p.name)
		}
	}
	return nil
}

// Thaw undoes Freeze.
func (p *Process) Thaw() error { return p.Signal(syscall.SIGCONT) }

// Kill ends the process at once and waits for its end.
func (p *Process) Kill() {
	_ = p.Signal(syscall.SIGKILL) // or it has ended
	<-p.done
}

// Stop asks the process to end, and after a while makes it.
func (p *Process) Stop(patience time.Duration) {
	_ = p.Signal(syscall.SIGCONT) // or it has ended
	_ = p.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(patience):
		p.Kill()
	}
}

// LogTail is the end of what the process printed.
func (p *Process) LogTail(lines int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimRight(string(b), "\n"), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}
