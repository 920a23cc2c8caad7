// Package store keeps the one small record by which the members of a cluster find each
// other and stand for keeper, in a coordinator that exists already: etcd, Redis or Valkey,
// or the API server of Kubernetes.
//
// # Goal
//
// A record is read, and written with compare-and-swap. That is all that is asked of a
// coordinator: no time to live, no watch, no lock, no second key. What a store cannot
// promise (that it does not go back in time, that two who write at once in two halves of
// it do not both succeed) is not relied upon by those who use it; see docs/cluster-stores.md.
//
// # Non-goals
//
// What the record says is for its writers. There is nothing here that is called for a
// request: a record is written about once a second, by one member.
//
// # Parts
//
// [Store] is the interface and [Memory] one in this process, for tests. Each coordinator
// is a package of its own (etcd, redis, lease), so that only it imports the client's
// library, and package open makes the one that a URL names. Package storetest has the
// tests that all of them pass, and starts real servers for them.
//
// # Revisions
//
// A revision names one write. It is drawn at random by the writer and lies beside the
// value. What a coordinator counts itself (etcd's revisions, the resourceVersion of an
// object) is not used for it: one that is restored from a backup counts the same numbers
// again, and who holds such a number from before would overwrite another's record.
package store
