// Package events reads what engines tell of their KV caches: the event streams of vLLM and
// SGLang over ZMQ.
//
// A [Stream] follows the events of one rank (stream.go): it connects and subscribes (zmtp.go),
// asks for what was missed before (replay.go), reads batches (decode.go) and tells a [Sink].
// Where a worker's streams are is found in find.go. What the events mean for a request is not
// its business.
//
// What it promises a sink:
//
//   - Nothing that the engine has dropped stays for longer than one batch or one time limit.
//     Batches have numbers; a gap is filled by a replay, before the batch that shows it, or the
//     sink is told Cleared. Less than the engine holds may be known (Snapshot.Partial), never
//     more.
//   - After a lost connection the last batch is asked for again, as only the same process
//     sends the same one: an engine that has restarted is an empty cache, however far its
//     numbers have come. Without a replay endpoint nothing is known after a lost connection.
//   - An event that cannot be read never costs its batch, nor one of an unknown type. A batch
//     that cannot be read to its end may have lost removals, and clears.
//   - A stream that is not connected, sends nothing of use although it must (Expect), or has
//     many faults (faults.go) is Degraded. An idle engine sends nothing, and is Live.
//
// What peers send is not trusted: the sizes of frames, messages, commands and replays, the
// members of events and the time for all of them are bounded, memory grows with what has
// arrived and has a bound for all streams together, and nothing recurses. A thousand idle
// streams hold a goroutine, a connection and 25 KB each.
package events

import "strings"

// Stored tells that an engine has blocks in its cache: consecutive blocks after Parent.
type Stored struct {
	// Hashes name the blocks, as the engine does; Parent the block before them.
	Hashes    []uint64
	Parent    uint64
	HasParent bool // else the blocks begin a prompt
	// Tokens are the ids of all blocks, BlockSize for each; none if the engine did not tell
	// them.
	Tokens    []uint32
	BlockSize int
	// Adapter is the LoRA adapter's name, or "#" and its number if no name is told.
	Adapter string
	// Extra is what else the hashes of each block depend on (cache salt, hashes of images),
	// one a block; nil: nothing.
	Extra [][]string
	// Salt is the cache salt, where the engine tells it apart; vLLM tells it in Extra of a
	// prompt's first block.
	Salt string
	// Medium is where the blocks are: "GPU" or empty for the cache that prefill uses.
	Medium string
	// Group is the KV cache group, Kind its kind; 0 and "" where there is only one.
	Group int
	Kind  string
	// Session is the tag of the request that stored them, if the engine tells it.
	Session string
}

// Removed tells that an engine has dropped blocks.
type Removed struct {
	Hashes []uint64
	Medium string
	Group  int
}

// InGPU tells whether blocks of a medium are in the cache that prefill uses.
func InGPU(medium string) bool { return medium == "" || strings.EqualFold(medium, "GPU") }

// Sink is told what a stream says, in order, by one goroutine. What it is handed is valid
// during the call only.
type Sink interface {
	Stored(*Stored)
	Removed(*Removed)
	// Cleared: the cache is empty, by an event or because it is not known any more what is in
	// it (a gap that could not be filled, a restart).
	Cleared()
	// State tells whether the stream can be relied on from now on.
	State(State)
}

// State is whether a stream tells all.
type State uint8

// The states.
const (
	// Degraded: the stream is silent, broken, or not connected.
	Degraded State = iota
	Live
)
