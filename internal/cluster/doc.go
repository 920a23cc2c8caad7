// Package cluster makes the gates of many processes one gate.
//
// # The parts
//
// The processes of one name are members. One of them, the keeper, decides for all: its
// core is an [admission.Port]. Members send it their requests and what becomes of them,
// as values, and it sends back grants and refusals. Another member, the standby, is told
// of every hold. Members find each other in a record that they keep in a store; nothing
// changes there per request, and no limit rests on it.
//
// [Machine] is one member: what it is told goes in (messages, results of the store, the
// steps of its own requests, the passing of time), what is to be done comes out. It has
// no goroutine, clock, lock or socket, so that thousands of schedules a second can be
// played in a test. It consists of
//
//   - links: sequence numbers and beats; who answers,
//   - election: who is the keeper, by epochs and the record in the store,
//   - keeper: the gate for all, while this member is the keeper,
//   - member: this process's own requests, with a keeper and without,
//   - table: the ranks, as the keeper knows them by what members observe,
//   - documents: the workers that were registered by hand or found by a source.
//
// Package cluster/node runs a Machine with streams, a store and the clock.
//
// # Safety
//
// A keeper decides only while, within the lease, it has renewed its record in the store
// or every listed member has answered it. A member obeys one epoch, never a lower one
// again, and takes no grant that is older than the lease. A new keeper opens the gate
// when every member that it can know of has reported what it holds, or is proven to have
// ended, or was silent for so long that it can have been granted nothing meanwhile but
// what is set aside for it. A grant counts once two members know of it.
package cluster
