// Package policy chooses one rank among those that have room.
//
// Goal: the choices people know from other routers (random, round robin, power
// of two, least load, consistent hashing), each a small type in a file of its own, each
// working on the set that the admission gate hands in. A choice costs the same
// in a fleet of four and of four thousand, and allocates nothing.
//
// Non-goals: waiting, room, health, pins and pairing. The gate has dealt with
// all of them before a policy sees a set.
//
// # Usage
//
//	newPolicy, err := policy.New("power_of_two", seed)
//	gate := admission.NewGate(admission.Options{NewPolicy: newPolicy}, clock, nil)
//
// A policy that goes by a key reads [admission.Hint.Key], which the caller
// computes with [HashKey] before it goes to the gate.
//
// All methods of a policy are called under the gate's lock, by one goroutine at
// a time.
package policy
