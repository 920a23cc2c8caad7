package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/sluice-router/sluice/internal/sim"
)

// NodeName is the name of the one node.
const NodeName = "node-a"

// startPause is the pause after an engine that could not be started.
const startPause = 500 * time.Millisecond

// Node stands for the kubelet and the scheduler: it runs what the pods of all namespaces
// ask for.
type Node struct {
	cluster *Cluster
	api     *Client
	probe   *http.Client
	cancel  context.CancelFunc
	over    sync.WaitGroup // the watch and all pods

	mu       sync.Mutex
	pods     map[string]*podRun    // by UID; guarded by mu
	fleets   map[string]*sim.Fleet // by namespace and backend; guarded by mu
	inside   map[*sim.Worker]*Pod  // as it was when the engine started; guarded by mu
	next     int                   // of the next address; guarded by mu
	adding   sync.Mutex            // held while an engine is added to a fleet
	settings sim.WorkerOptions     // of that engine; guarded by adding
}

// podRun is one pod on the node.
type podRun struct {
	node *Node
	uid  string

	mu      sync.Mutex
	pod     *Pod          // as last seen; guarded by mu
	engine  engine        // nil before it was started; guarded by mu
	gone    chan struct{} // closed when the pod is no more
	leave   func()        // closes gone
	changed chan struct{} // gets a value at each change
}

// StartNode registers the node and runs pods until Close.
func StartNode(ctx context.Context, c *Cluster, api *Client) (*Node, error) {
	n := &Node{cluster: c, api: api, pods: make(map[string]*podRun), fleets: make(map[string]*sim.Fleet), inside: make(map[*sim.Worker]*Pod),
		probe: &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}}
	err := api.Create(ctx, "/api/v1/nodes", object{"apiVersion": "v1", "kind": "Node", "metadata": object{"name": NodeName}})
	if err != nil && !hasCode(err, http.StatusConflict) {
		return nil, err
	}
	ctx, n.cancel = context.WithCancel(context.Background())
	n.over.Go(func() { n.watch(ctx) })
	return n, nil
}

// Close ends all engines.
func (n *Node) Close() {
	n.cancel()
	n.over.Wait()
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, r := range n.pods {
		if e := r.running(); e != nil {
			e.kill()
		}
	}
	for _, f := range n.fleets {
		f.Close()
	}
}

// Fleet are the engines inside this process of a namespace, nil if there were none.
func (n *Node) Fleet(namespace string, backend sim.Backend) *sim.Fleet {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.fleets[namespace+"/"+string(backend)]
}

// PodOf is the pod whose engine a worker inside this process is.
func (n *Node) PodOf(w *sim.Worker) *Pod {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.inside[w]
}

// watch follows the pods for as long as ctx lasts. What it misses while a watch is away
// is seen by the list before the next one.
func (n *Node) watch(ctx context.Context) {
	for ctx.Err() == nil {
		version, err := n.list(ctx)
		if err == nil {
			err = n.api.Watch(ctx, "/api/v1/pods", version, func(e Event) error { return n.event(ctx, e) })
		}
		if err != nil && ctx.Err() == nil {
			time.Sleep(100 * time.Millisecond)
		}
	}
}

func (n *Node) list(ctx context.Context) (version string, err error) {
	var list struct {
		Metadata struct {
			ResourceVersion string `json:"resourceVersion"`
		} `json:"metadata"`
		Items []json.RawMessage `json:"items"`
	}
	if err := n.api.do(ctx, http.MethodGet, "/api/v1/pods", "", nil, &list); err != nil {
		return "", err
	}
	here := make(map[string]bool)
	for _, raw := range list.Items {
		p, err := readPod(raw)
		if err != nil {
			return "", err
		}
		here[p.Metadata.UID] = true
		n.seen(ctx, p)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for uid, r := range n.pods {
		if !here[uid] {
			r.leave()
		}
	}
	return list.Metadata.ResourceVersion, nil
}

func (n *Node) event(ctx context.Context, e Event) error {
	switch e.Type {
	case "ADDED", "MODIFIED", "DELETED":
	case "ERROR": // its object is no pod
		return fmt.Errorf("the watch of pods failed: %s", e.Object)
	default:
		return nil
	}
	p, err := readPod(e.Object)
	if err != nil {
		return err
	}
	if e.Type != "DELETED" {
		n.seen(ctx, p)
		return nil
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if r := n.pods[p.Metadata.UID]; r != nil {
		r.leave()
	}
	return nil
}

// seen tells the pod's run of its state, and begins one for a new pod.
func (n *Node) seen(ctx context.Context, p *Pod) {
	n.mu.Lock()
	defer n.mu.Unlock()
	r, begun := n.pods[p.Metadata.UID], true
	if r == nil {
		if p.Spec.NodeName != "" && p.Spec.NodeName != NodeName {
			return
		}
		gone := make(chan struct{})
		r = &podRun{node: n, uid: p.Metadata.UID, changed: make(chan struct{}, 1), gone: gone, leave: sync.OnceFunc(func() { close(gone) })}
		n.pods[r.uid], begun = r, false
	}
	r.mu.Lock()
	r.pod = p
	r.mu.Unlock()
	if begun {
		r.wake()
		return
	}
	n.over.Go(func() { r.run(ctx) })
}

func (n *Node) forget(r *podRun) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if e := r.running(); e == nil { // otherwise Close ends it
		delete(n.pods, r.uid)
	}
}

// address is one for a new pod.
func (n *Node) address() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.next++
	return n.cluster.address(1+n.next/250, 1+n.next%250)
}

func (r *podRun) wake() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// now is the pod as last seen, and whether it is no more.
func (r *podRun) now() (p *Pod, gone bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-r.gone:
		return r.pod, true
	default:
		return r.pod, false
	}
}

func (r *podRun) running() engine {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.engine
}

// run is the life of a pod: it is bound, started, reported ready, started again if it
// ends by itself, and ended when it is deleted.
func (r *podRun) run(ctx context.Context) {
	defer r.node.forget(r)
	if err := r.bind(ctx); err != nil {
		r.complain(ctx, err)
		return
	}
	p, _ := r.now()
	address := p.Metadata.Annotations[annotationAddress]
	if address == "" {
		address = r.node.address()
	}
	for ctx.Err() == nil {
		if p, gone := r.now(); gone || p.Metadata.DeletionTimestamp != nil {
			r.end(ctx)
			return
		}
		if err := r.serve(ctx, address); err != nil {
			r.complain(ctx, err)
			select {
			case <-time.After(startPause):
			case <-r.changed:
			case <-r.gone:
			case <-ctx.Done():
			}
		}
	}
}

func (r *podRun) complain(ctx context.Context, err error) {
	p, gone := r.now()
	if ctx.Err() == nil && !gone {
		fmt.Fprintf(os.Stderr, "node: pod %s: %v\n", p.Name(), err)
	}
}

func (r *podRun) bind(ctx context.Context) error {
	p, _ := r.now()
	if p.Spec.NodeName != "" {
		return nil
	}
	return retry(ctx, func() error {
		return r.node.api.Create(ctx, p.Path()+"/binding", object{
			"apiVersion": "v1", "kind": "Binding", "metadata": object{"name": p.Metadata.Name},
			"target": object{"apiVersion": "v1", "kind": "Node", "name": NodeName},
		})
	})
}

// serve runs the engine until it ends by itself or the pod is to end.
func (r *podRun) serve(ctx context.Context, address string) error {
	p, _ := r.now()
	port, err := p.port()
	if err != nil {
		return err
	}
	if err := r.report(ctx, readyStatus(false, address)); err != nil {
		return err
	}
	if secs, err := strconv.Atoi(p.Metadata.Annotations[annotationLoads]); err == nil {
		r.wait(ctx, time.After(time.Duration(secs)*time.Second), nil)
	}
	e, err := r.node.startEngine(p, address, port)
	if err != nil {
		return err
	}
	r.mu.Lock()
	r.engine = e
	r.mu.Unlock()
	health := "http://" + net.JoinHostPort(address, strconv.Itoa(port)) + "/health"
	for ready := false; ; {
		probe := time.After(time.Hour)
		if !ready {
			if ready = r.node.healthy(ctx, health); ready {
				if err := r.report(ctx, readyStatus(true, "")); err != nil {
					return err
				}
				continue
			}
			probe = time.After(30 * time.Millisecond)
		}
		select {
		case <-probe:
		case <-r.gone:
			return nil
		case <-r.changed:
			if p, _ := r.now(); p.Metadata.DeletionTimestamp != nil {
				return nil
			}
		case <-e.ended():
			if err := r.report(ctx, readyStatus(false, "")); err != nil {
				return err
			}
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// end ends the engine as a kubelet does: preStop, SIGTERM, and at the end of the grace
// period SIGKILL; then the pod is taken out of the API.
func (r *podRun) end(ctx context.Context) {
	p, gone := r.now()
	e := r.running()
	ghost := p.Metadata.Annotations[annotationGhost] != ""
	grace := 0
	if p.Metadata.GraceSeconds != nil && !gone {
		grace = *p.Metadata.GraceSeconds
	}
	kill := time.After(time.Duration(grace) * time.Second)
	switch {
	case e == nil:
	case ghost && len(p.Metadata.Finalizers) > 0: // it is kept, and its engine heeds no signal
		r.wait(ctx, kill, e.ended())
	case !ghost:
		if stop := p.Spec.Containers[0].Lifecycle.PreStop.Sleep.Seconds; stop > 0 {
			r.wait(ctx, time.After(time.Duration(stop)*time.Second), e.ended())
		}
		e.terminate()
		r.wait(ctx, kill, e.ended())
		e.kill()
		r.mu.Lock()
		r.engine = nil
		r.mu.Unlock()
	}
	if _, gone := r.now(); gone || ctx.Err() != nil {
		return
	}
	err := retry(ctx, func() error { return r.node.api.Delete(ctx, p.Path(), 0, r.uid) })
	if err != nil && !hasCode(err, http.StatusNotFound) && !hasCode(err, http.StatusConflict) {
		r.complain(ctx, err)
	}
}

// wait waits for the first of the events, or until the pod is no more. The kubelet ends a
// pod that was deleted by force with a grace period of its own; here it is ended at once.
func (r *podRun) wait(ctx context.Context, after <-chan time.Time, ended <-chan struct{}) {
	select {
	case <-after:
	case <-ended:
	case <-r.gone:
	case <-ctx.Done():
	}
}

// report writes the pod's status. A pod that is gone has none.
func (r *podRun) report(ctx context.Context, status object) error {
	p, _ := r.now()
	err := retry(ctx, func() error { return r.node.api.Patch(ctx, p.Path()+"/status", strategicPatch, status) })
	if hasCode(err, http.StatusNotFound) {
		return nil
	}
	return err
}

// healthy asks an engine whether it is.
func (n *Node) healthy(ctx context.Context, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return false
	}
	resp, err := n.probe.Do(req)
	if err != nil {
		return false
	}
	resp.Body.Close()
	return resp.StatusCode == http.StatusOK
}
