package main

import (
	"encoding/json"
	"fmt"
	"time"
)

// Annotations that tell the node what a pod is to be.
const (
	// annotationEngine is "process" (the default: the pod's command runs as a process of
	// its own), or "sglang" or "vllm": an engine inside this process, which is cheaper
	// and, with others of its namespace, moves KV between prefill and decode.
	annotationEngine = "testbed/engine"
	// annotationRole is what an engine inside this process does: "prefill", "decode" or
	// "regular", the default.
	annotationRole = "testbed/role"
	// annotationAddress gives the pod that address instead of one of its own.
	annotationAddress = "testbed/address"
	// annotationLoads is for how many seconds the engine loads before it listens.
	annotationLoads = "testbed/loads"
	// annotationGhost lets the engine live on when its pod is gone: what still answers at
	// the address is nobody's worker any more.
	annotationGhost = "testbed/ghost"
)

// Pod is what the node and the tests read of a pod.
type Pod struct {
	Metadata struct {
		Name              string            `json:"name"`
		Namespace         string            `json:"namespace"`
		UID               string            `json:"uid"`
		ResourceVersion   string            `json:"resourceVersion"`
		Labels            map[string]string `json:"labels"`
		Annotations       map[string]string `json:"annotations"`
		DeletionTimestamp *time.Time        `json:"deletionTimestamp"`
		GraceSeconds      *int              `json:"deletionGracePeriodSeconds"`
		Finalizers        []string          `json:"finalizers"`
	} `json:"metadata"`
	Spec struct {
		NodeName   string      `json:"nodeName"`
		Containers []Container `json:"containers"`
	} `json:"spec"`
	Status struct {
		Phase      string      `json:"phase"`
		PodIP      string      `json:"podIP"`
		Conditions []Condition `json:"conditions"`
	} `json:"status"`
}

// Container is one of a pod.
type Container struct {
	Args  []string `json:"args"`
	Ports []struct {
		Name string `json:"name"`
		Port int    `json:"containerPort"`
	} `json:"ports"`
	Lifecycle struct {
		PreStop struct {
			Sleep struct {
				Seconds int `json:"seconds"`
			} `json:"sleep"`
		} `json:"preStop"`
	} `json:"lifecycle"`
}

// Condition is one of a pod's status.
type Condition struct {
	Type   string `json:"type"`
	Status string `json:"status"`
}

// Name is the pod's namespace and name.
func (p *Pod) Name() string { return p.Metadata.Namespace + "/" + p.Metadata.Name }

// Path is that of the pod in the API.
func (p *Pod) Path() string { return podPath(p.Metadata.Namespace, p.Metadata.Name) }

func podPath(namespace, name string) string {
	return "/api/v1/namespaces/" + namespace + "/pods/" + name
}

// Ready tells whether the pod says that it is ready.
func (p *Pod) Ready() bool {
	for _, c := range p.Status.Conditions {
		if c.Type == "Ready" {
			return c.Status == "True"
		}
	}
	return false
}

// port is the first of its ports.
func (p *Pod) port() (int, error) {
	for _, c := range p.Spec.Containers {
		for _, port := range c.Ports {
			return port.Port, nil
		}
	}
	return 0, fmt.Errorf("pod %s has no port", p.Name())
}

// readPod reads a pod out of an event.
func readPod(raw json.RawMessage) (*Pod, error) {
	p := &Pod{}
	if err := json.Unmarshal(raw, p); err != nil {
		return nil, fmt.Errorf("cannot read a pod: %w", err)
	}
	return p, nil
}

// readyStatus is the status of a running pod. The address is left as it is where it is "".
func readyStatus(ready bool, address string) object {
	value, now := "False", time.Now().UTC().Format(time.RFC3339)
	if ready {
		value = "True"
	}
	var conditions []object
	for _, kind := range []string{"PodScheduled", "Initialized", "ContainersReady", "Ready"} {
		c := object{"type": kind, "status": "True", "lastTransitionTime": now}
		if kind == "Ready" || kind == "ContainersReady" {
			c["status"] = value
		}
		conditions = append(conditions, c)
	}
	status := object{"phase": "Running", "conditions": conditions}
	if address != "" {
		status["podIP"], status["podIPs"] = address, []object{{"ip": address}}
	}
	return object{"status": status}
}
