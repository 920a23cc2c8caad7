// Package kubernetes declares the pods of a Kubernetes cluster as workers.
//
// # Goal
//
// A pod that a selector matches is a worker from the moment it runs until it is gone, in
// the state in which the cluster has it: one that is not ready is registered and not
// chosen, one that is being deleted gets no new requests. What was missed is found again:
// no event is relied upon.
//
// # Non-goals
//
// Whether an engine lives and what it serves is the fleet's business, and when a set of
// workers is put in force the discovery's. No other kind of object is read, and nothing
// is written.
//
// # Parts
//
// A [watcher] keeps the objects of one kind: it lists them, watches them for a while and
// lists them again. translate (pods) and translateSlice (EndpointSlices) make workers of
// one object, without a clock or a network. [Source] puts what the watchers have together
// into readings.
//
// # Each round begins with a list
//
// The reflectors of client-go go on from the last version after a cut, and list again
// only when the server says that it has forgotten that version. An event that was lost on
// the way, in a proxy or in a server that was restarted, then stays lost. Here a round is
// one list and one watch, and a watch has an end: what a list does not have is gone.
package kubernetes
