// Command kubernetes runs a real kube-apiserver on etcd, and a node that runs simulated
// engines for its pods, for the tests beside it and for trying sluice by hand.
//
//	./test/kubernetes/install.sh     once
//	go run ./test/kubernetes         a cluster until Ctrl-C
//	make e2e-kubernetes              the tests
//
// # Goal
//
// sluice's discovery against a server that nobody here wrote: resource versions,
// bookmarks, a compacted history, rights, restarts and a server that falls silent are
// Kubernetes' own. Pods come, go and change under load, and behind each is an engine.
//
// # Non-goals
//
// What a scripted server shows as well is tested beside the source, in less time. There
// is no kubelet with its probes' timing, no network plugin, and no Service that forwards.
//
// # Parts
//
// A Cluster is an etcd, one or more API servers, and the controllers of Deployments and
// StatefulSets, processes that end with this one. A Client speaks to an API server as one
// account. A Node stands for the kubelet: it binds pods, gives each an address, runs its
// engine, reports when it is ready, and ends it when the pod is deleted. All addresses are
// of one network 127.N.0.0/16, which no other run of this package uses at the same time.
package main
