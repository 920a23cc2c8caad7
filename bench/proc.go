package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"time"
)

// process is a child. It ends with this program, however this program ends.
type process struct {
	name string
	pid  int
	cmd  *exec.Cmd
	log  string // file with its standard error (and output, if nobody reads it)
	done chan struct{}
}

// spawner starts children from one thread that lives as long as the program:
// the kernel ends children with the thread that started them, and a child
// inherits that thread's CPUs.
type spawner struct {
	dir   string
	start chan func()
	n     int // children so far; owned by the spawner's goroutine
}

func newSpawner(dir string) *spawner {
	s := &spawner{dir: dir, start: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for f := range s.start {
			f()
		}
	}()
	return s
}

// run starts a command on the given CPUs (none: on all). With a pipe its
// standard output is read by the caller.
func (s *spawner) run(name string, cpus []int, pipe *os.File, path string, args ...string) (*process, error) {
	p := &process{name: name, done: make(chan struct{})}
	result := make(chan error)
	s.start <- func() { result <- s.startHere(p, cpus, pipe, path, args) }
	if err := <-result; err != nil {
		return nil, fmt.Errorf("cannot start %s: %w", name, err)
	}
	go func() {
		_ = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

func (s *spawner) startHere(p *process, cpus []int, pipe *os.File, path string, args []string) error {
	s.n++
	p.log = filepath.Join(s.dir, fmt.Sprintf("%s-%d.log", p.name, s.n))
	log, err := os.Create(p.log)
	if err != nil {
		return err
	}
	defer log.Close()
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	if pipe != nil {
		p.cmd.Stdout = pipe
	}
	p.cmd.SysProcAttr = childAttr()
	if err := setAffinity(cpus); err != nil {
		return fmt.Errorf("cannot pin to CPUs %v: %w", cpus, err)
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.pid = p.cmd.Process.Pid
	return nil
}

// stop ends the process: gently, then by force.
func (p *process) stop() {
	if p == nil {
		return
	}
	_ = p.cmd.Process.Signal(syscall.SIGINT)
	select {
	case <-p.done:
		return
	case <-time.After(2 * time.Second):
	}
	_ = p.cmd.Process.Kill()
	<-p.done
}

// lastWords is the end of what the process wrote.
func (p *process) lastWords() string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(b) > 2000 {
		b = b[len(b)-2000:]
	}
	return string(b)
}

// await asks check until it is content, the process ends or time runs out.
func (p *process) await(ctx context.Context, limit time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-p.done:
			return fmt.Errorf("%s ended (%s): %s", p.name, p.cmd.ProcessState, p.lastWords())
		case <-ctx.Done():
			return fmt.Errorf("%s is not ready after %v: %w: %s", p.name, limit, err, p.lastWords())
		case <-time.After(50 * time.Millisecond):
		}
	}
}
