// Package node runs a [cluster.Machine]: it gives it the time, the streams to and from
// other members, and the store, and is the [admission.Remote] of the process's gate.
//
// # The parts
//
// [Node] has the machine under one mutex. Whoever has something for it (the gate's callers,
// a stream, the store, the timer) takes the mutex, calls one method and hands on what came of
// it: decisions to the gate, an operation to the goroutine of the store, what is to be told to
// that of the reports. The senders, one goroutine for each peer, take envelopes when
// something is ready and they are not writing: a batch is what came together while the one
// before was written, and none waits.
//
// # Streams
//
// Members are connected in full. Each dials each other and sends on the stream that it
// opened (sluice.cluster.v1.Gate/Send); the other side answers nothing until the stream ends.
// What says who talks to whom is in the call's metadata, and what is wrong with it is the
// call's status. A peer that answers nothing for a while is dialled anew, since a connection
// that lost its way may take minutes to find it again.
//
// # Lock order
//
// Node.mu, then the gate's lock. Nothing is written, encoded or logged under either.
package node
