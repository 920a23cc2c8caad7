package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"sync"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
	"github.com/sluice-router/sluice/test/process"
)

// adminPort is where an engine that is a process serves the simulator's admin API.
const adminPort = 9999

// engine is what runs for a pod.
type engine interface {
	// ended is closed when it has ended.
	ended() <-chan struct{}
	// terminate asks it to end, as SIGTERM does; kill ends it at once and waits for it.
	terminate()
	kill()
}

// startEngine starts what the pod asks for at an address.
func (n *Node) startEngine(p *Pod, address string, port int) (engine, error) {
	kind := p.Metadata.Annotations[annotationEngine]
	switch kind {
	case "", "process":
		if n.cluster.bin.Sluice == "" {
			return nil, errors.New("there is no binary that plays its engine")
		}
		argv := append([]string{n.cluster.bin.Sluice, "sim"}, p.Spec.Containers[0].Args...)
		argv = append(argv, "--host", address, "--port", strconv.Itoa(port), "--admin", net.JoinHostPort(address, strconv.Itoa(adminPort)))
		proc, err := process.Start(n.cluster.Dir, "pod-"+p.Metadata.UID, []string{"PATH=" + os.Getenv("PATH")}, argv...)
		if err != nil {
			return nil, err
		}
		return processEngine{proc}, nil
	case string(sim.SGLang), string(sim.VLLM):
		return n.startInside(p, sim.Backend(kind), address, port)
	}
	return nil, fmt.Errorf("annotation %s: no such engine: %q", annotationEngine, kind)
}

// processEngine is "sluice sim" with one worker.
type processEngine struct{ p *process.Process }

func (e processEngine) ended() <-chan struct{} { return e.p.Done() }
func (e processEngine) terminate()             { _ = e.p.Signal(syscall.SIGTERM) } // or it has ended
func (e processEngine) kill()                  { e.p.Kill() }

// insideEngine is a worker of a simulated fleet inside this process.
type insideEngine struct {
	worker *sim.Worker
	done   chan struct{}
	end    func() // closes done
}

// bootstrapPort is the one that the pod's annotation names, as the engine's own option.
func bootstrapPort(p *Pod) int {
	port, err := strconv.Atoi(p.Metadata.Annotations["sglang.ai/bootstrap-port"])
	if err != nil {
		return 0
	}
	return port
}

// startInside adds a worker to the fleet of the pod's namespace, which is made for the
// first one.
func (n *Node) startInside(p *Pod, backend sim.Backend, address string, port int) (engine, error) {
	n.adding.Lock()
	defer n.adding.Unlock()
	key := p.Metadata.Namespace + "/" + string(backend)
	n.mu.Lock()
	f := n.fleets[key]
	n.mu.Unlock()
	if f == nil {
		var err error
		f, err = sim.Start(sim.Options{Each: func(_ sim.Role, _ int, o *sim.WorkerOptions) { *o = n.settings }})
		if err != nil {
			return nil, err
		}
		n.mu.Lock()
		n.fleets[key] = f
		n.mu.Unlock()
	}
	role := sim.Regular
	if r := p.Metadata.Annotations[annotationRole]; r != "" {
		role = sim.Role(r)
	}
	n.settings = sim.WorkerOptions{Backend: backend, Host: address, Port: port, BootstrapPort: bootstrapPort(p),
		HealthDelay: -1, BootstrapTimeout: 20 * time.Second, PeerLossAfter: 500 * time.Millisecond,
		Timing: sim.Timing{DecodeStep: 4 * time.Millisecond, PrefillTime: 4 * time.Millisecond}}
	w, err := f.Add(role)
	if err != nil {
		return nil, err
	}
	n.mu.Lock()
	n.inside[w] = p
	n.mu.Unlock()
	e := &insideEngine{worker: w, done: make(chan struct{})}
	e.end = sync.OnceFunc(func() { close(e.done) })
	return e, nil
}

func (e *insideEngine) ended() <-chan struct{} { return e.done }

// terminate ends the engine as the real ones end: SGLang's after the requests that run,
// vLLM's never while streams are open.
func (e *insideEngine) terminate() {
	if e.worker.Backend() == sim.VLLM {
		e.worker.Terminate()
		return
	}
	go func() {
		_ = e.worker.Stop(context.Background()) // unless it is killed first
		e.end()
	}()
}

func (e *insideEngine) kill() {
	e.worker.Kill()
	e.end()
}
