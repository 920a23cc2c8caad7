package kubernetes

import (
	"cmp"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/text"
)

// Labels of the workers, by which operators and requests find them.
const (
	PodNameLabel = "smg.ai/pod-name"
	PodUIDLabel  = "smg.ai/pod-uid"
)

// leaderIndexLabel numbers the pods of a LeaderWorkerSet's group; only number 0 serves
// HTTP.
const leaderIndexLabel = "leaderworkerset.sigs.k8s.io/worker-index"

// object is what one object of the cluster means. It is not changed once made.
type object struct {
	uid     string
	created time.Time
	// address is that of the engines, "" for none.
	address string
	workers []fleet.Declared
	// warnings say the object and what is wrong with it.
	warnings []string
	// pods are the UIDs of the pods that the workers stand for, where the object is none
	// itself; "" for an endpoint without a pod.
	pods []string
}

func (o *object) equal(p *object) bool { return reflect.DeepEqual(o, p) }

// subject is what pods and endpoints have in common when workers are made of them.
type subject struct {
	place       string // "pod default/x", for messages
	namespace   string
	labels      map[string]string
	annotations map[string]string
	// port finds a port by the name that the configuration has.
	port func(name string) (port int, ok bool)
}

// translate makes workers of a pod. It is nil for one that no selector matches.
func (r *rules) translate(p *corev1.Pod) *object {
	role, also, ok := r.roles.of(p.Labels)
	if !ok {
		return nil
	}
	o := &object{uid: string(p.UID), created: p.CreationTimestamp.Time}
	// A pod that has ended has no engine any more, whatever address is still written there.
	switch p.Status.Phase {
	case corev1.PodPending, corev1.PodFailed, corev1.PodSucceeded:
		return o
	}
	if p.Status.PodIP == "" {
		return o
	}
	o.address = p.Status.PodIP
	if index, ok := p.Labels[leaderIndexLabel]; ok && index != "0" {
		return o
	}
	s := &subject{
		place: "pod " + p.Namespace + "/" + p.Name, namespace: p.Namespace, labels: p.Labels, annotations: p.Annotations,
		port: func(name string) (int, bool) { return containerPort(p, name) },
	}
	if also != "" {
		o.warn(s, "%s matches it too; it is a %s worker", also, role)
	}
	workers := r.workers(o, s, role, p.Status.PodIP)
	notReady := notReadyReason(p)
	for i := range workers {
		w := &workers[i]
		w.Identity = o.uid
		w.NotReady = notReady
		if p.DeletionTimestamp != nil {
			// It has the grace period in it.
			w.Leaving, w.LeaveBy, w.NotReady = true, p.DeletionTimestamp.Time, ""
		}
		w.Labels[PodNameLabel], w.Labels[PodUIDLabel] = p.Name, o.uid
	}
	r.setEngineIDs(o, s, workers)
	o.workers = workers
	return o
}

// workers makes one worker for each port of an address.
func (r *rules) workers(o *object, s *subject, role config.WorkerType, ip string) []fleet.Declared {
	addr, err := netip.ParseAddr(ip)
	if err != nil || addr.IsUnspecified() || addr.IsMulticast() {
		o.warn(s, "its address %.64q is no address of one host; it is left out", ip)
		return nil
	}
	ports := r.ports(o, s)
	workers := make([]fleet.Declared, len(ports))
	connector, model := r.connectorOf(o, s), r.modelOf(o, s)
	bootstrap := r.bootstrapPorts(o, s, role, len(ports))
	for i, port := range ports {
		w := fleet.Declared{Origin: s.place}
		w.URL = r.scheme + "://" + netip.AddrPortFrom(addr, uint16(port)).String()
		w.Type, w.KVConnector, w.ModelID = role, connector, model
		w.Labels = map[string]string{}
		if bootstrap != nil {
			w.BootstrapPort = bootstrap[i]
		}
		if v := s.labels[r.pairLabel]; r.pairLabel != "" && v != "" {
			w.Labels[r.pairLabel] = v
		}
		workers[i] = w
	}
	return workers
}

// ports are the ports of its engines: those of the annotation, else that of the
// configuration. None: there is no port of that name.
func (r *rules) ports(o *object, s *subject) []int {
	if list, ok := s.annotations[WorkerPortsAnnotation]; ok {
		ports, err := parsePorts(list)
		if err == nil {
			return ports
		}
		o.warn(s, "annotation %s: %v; port %s is used", WorkerPortsAnnotation, err, r.port)
	}
	if n, ok := r.port.Number(); ok {
		return []int{n}
	}
	if m, ok := r.port.Metadata(); ok {
		ports, err := parsePorts(m.Of(s.namespace, s.labels, s.annotations))
		if err != nil {
			o.warn(s, "%s (--service-discovery-port): %v; it is left out", r.port, err)
		}
		return ports
	}
	if n, ok := s.port(string(r.port)); ok {
		return []int{n}
	}
	o.warn(s, "it has no port named %s (--service-discovery-port); it is left out", r.port)
	return nil
}

func containerPort(p *corev1.Pod, name string) (int, bool) {
	// The containers that start first and run on are among the others.
	for _, list := range [][]corev1.Container{p.Spec.Containers, p.Spec.InitContainers} {
		for i := range list {
			for _, port := range list[i].Ports {
				if port.Name == name && port.ContainerPort > 0 && port.ContainerPort <= 65535 {
					return int(port.ContainerPort), true
				}
			}
		}
	}
	return 0, false
}

func (r *rules) bootstrapPorts(o *object, s *subject, role config.WorkerType, n int) []config.BootstrapPort {
	list, ok := s.annotations[r.bootstrap]
	if !ok || role != config.WorkerPrefill || n == 0 {
		return nil
	}
	ports, err := parseBootstrapPorts(list, n)
	if err != nil {
		o.warn(s, "annotation %s: %v; the engine is asked for its bootstrap port", r.bootstrap, err)
		return nil
	}
	return ports
}

func (r *rules) connectorOf(o *object, s *subject) string {
	spelling := s.annotations[r.connector]
	if spelling == "" || spelling == "auto" {
		return ""
	}
	name, of := r.connectors.Connector(spelling)
	if of == nil {
		o.warn(s, "annotation %s: %.64q is no KV connector that is known here; the engine is asked", r.connector, spelling)
	}
	return name
}

func (r *rules) modelOf(o *object, s *subject) string {
	model := r.modelFrom.Of(s.namespace, s.labels, s.annotations)
	if model != "" && !engine.ValidName(model) {
		o.warn(s, "its model (%s) is too long or has a control character; it is not used", r.modelFrom)
		model = ""
	}
	return cmp.Or(model, r.model)
}

// setEngineIDs makes the ids of the KV engines a part of what tells engines apart.
func (r *rules) setEngineIDs(o *object, s *subject, workers []fleet.Declared) {
	list, ok := s.annotations[r.engineID]
	if !ok || len(workers) == 0 {
		return
	}
	ids, err := parseEngineIDs(list, len(workers))
	if err != nil {
		o.warn(s, "annotation %s: %v; it is not used", r.engineID, err)
		return
	}
	for i := range workers {
		workers[i].Identity += "/" + ids[i]
	}
}

// maxReason bounds what a pod says of why it is not ready, in bytes.
const maxReason = 200

// notReadyReason is empty for a pod that is ready.
func notReadyReason(p *corev1.Pod) string {
	for _, c := range p.Status.Conditions {
		if c.Type != corev1.PodReady {
			continue
		}
		if c.Status == corev1.ConditionTrue {
			return ""
		}
		return "the pod is not ready: " + text.Clip(cmp.Or(c.Message, c.Reason, "its condition Ready is "+string(c.Status)), maxReason)
	}
	return "the pod is not ready: it has no condition Ready yet"
}

// maxObjectWarnings bounds the warnings of one object; each has one for each thing that
// can be wrong with it.
const maxObjectWarnings = 8

func (o *object) warn(s *subject, format string, args ...any) {
	if len(o.warnings) < maxObjectWarnings {
		o.warnings = append(o.warnings, s.place+": "+fmt.Sprintf(format, args...))
	}
}
