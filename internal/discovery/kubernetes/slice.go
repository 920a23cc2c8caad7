package kubernetes

import (
	"cmp"
	"fmt"

	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/sluice-router/sluice/internal/fleet"
)

// maxEndpoints bounds the endpoints of one slice; the API server's own bound is 1,000.
const maxEndpoints = 1000

// translateSlice makes workers of the endpoints of an EndpointSlice, by the labels and
// annotations that the slice has from its Service. It is nil for a slice that no selector
// matches.
func (r *rules) translateSlice(es *discoveryv1.EndpointSlice) *object {
	role, also, ok := r.roles.of(es.Labels)
	if !ok {
		return nil
	}
	o := &object{uid: string(es.UID), created: es.CreationTimestamp.Time}
	s := &subject{
		place: "endpointslice " + es.Namespace + "/" + es.Name, namespace: es.Namespace, labels: es.Labels, annotations: es.Annotations,
		port: func(name string) (int, bool) { return slicePort(es, name) },
	}
	if also != "" {
		o.warn(s, "%s matches it too; its endpoints are %s workers", also, role)
	}
	if es.AddressType == discoveryv1.AddressTypeFQDN {
		o.warn(s, "its endpoints are names and not addresses (addressType FQDN); it is left out")
		return o
	}
	if n := len(es.Endpoints); n > maxEndpoints {
		o.warn(s, "it has %d endpoints; those after the first %d are left out", n, maxEndpoints)
	}
	for i := range es.Endpoints[:min(len(es.Endpoints), maxEndpoints)] {
		e := &es.Endpoints[i]
		if len(e.Addresses) == 0 {
			continue
		}
		at := *s
		uid := ""
		if ref := e.TargetRef; ref != nil && ref.Kind == "Pod" {
			uid = string(ref.UID)
			at.place += " (pod " + cmp.Or(ref.Namespace, es.Namespace) + "/" + ref.Name + ")"
		}
		// The further addresses are those of the same endpoint.
		for _, w := range r.workers(o, &at, role, e.Addresses[0]) {
			setEndpointState(&w, e)
			w.Identity = uid
			if ref := e.TargetRef; uid != "" {
				w.Labels[PodNameLabel], w.Labels[PodUIDLabel] = ref.Name, uid
			}
			o.workers, o.pods = append(o.workers, w), append(o.pods, uid)
		}
	}
	return o
}

// setEndpointState takes over an endpoint's conditions. What is not said of readiness
// counts as ready, as the API has it.
func setEndpointState(w *fleet.Declared, e *discoveryv1.Endpoint) {
	c := &e.Conditions
	switch {
	case c.Terminating != nil && *c.Terminating:
		w.Leaving = true
	case c.Ready != nil && !*c.Ready:
		w.NotReady = "the endpoint is not ready"
		if c.Serving != nil {
			w.NotReady += fmt.Sprintf(" (serving: %t)", *c.Serving)
		}
	}
}

func slicePort(es *discoveryv1.EndpointSlice, name string) (int, bool) {
	for _, p := range es.Ports {
		if p.Name != nil && *p.Name == name && p.Port != nil && *p.Port > 0 && *p.Port <= 65535 {
			return int(*p.Port), true
		}
	}
	return 0, false
}
