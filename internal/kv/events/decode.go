package events

import (
	"math"
	"sync"
)

// Bounds of what one event may have. Beyond them the event is bad, or loses its tokens; they
// are far above what engines send.
const (
	maxHashes    = 1 << 18 // in a Stored; a removal of more is told in several
	maxTokens    = 1 << 21
	maxBlockSize = 1 << 16
	maxName      = 1 << 10 // bytes of an adapter, a salt, a tag or a part of Extra
	maxExtra     = 64      // parts a block
	maxGroup     = 1 << 16
	maxInterned  = 1 << 8  // strings
	keepTokens   = 1 << 16 // a buffer for more is not kept for the next event
	keepHashes   = 1 << 13
)

// handler is told the events of a batch. What it is handed is valid during the call only.
type handler interface {
	stored(*Stored)
	removed(*Removed)
	emptied()
}

// batch is what was in a batch beside its events.
type batch struct {
	// time is the engine's clock when it made the batch, in seconds since 1970; 0: unusable.
	time float64
	// foreign: it is of another rank, and its events were ignored.
	foreign bool
	// broken: it is no batch, or ends in the middle of an event.
	broken bool
	// events is how many there were; bad could not be used or only in part; skipped are of
	// no interest.
	events, bad, skipped int
}

// decoder reads batches. It keeps its buffers, so that it allocates nothing but strings that
// it has not seen for a while.
type decoder struct {
	stored  Stored
	removed Removed
	extras  []string // the parts of all blocks, to which stored.Extra points
	names   map[string]string
	scratch []byte

	// of the event that is being read
	unusable  bool // cannot be used at all
	unknown   bool // what the blocks hold cannot be known: only their hashes count
	elsewhere bool // blocks outside of the engine
	extra     bool // some block depends on something else
}

// decoders are for the batches of all streams, as few of them read one at a time.
var decoders = sync.Pool{New: func() any { return &decoder{names: map[string]string{}} }}

// decode reads a batch of a rank, or of AnyRank: [time, events, rank], the last of them not
// from all versions.
func (d *decoder) decode(b []byte, rank int, to handler) (got batch) {
	k, n, b, ok := head(b)
	if !ok || k != kindArray || n < 2 {
		return batch{broken: true}
	}
	k, v, b, ok := head(b)
	switch {
	case !ok:
		return batch{broken: true}
	case k == kindFloat:
		got.time = math.Float64frombits(v)
	case k == kindUint:
		got.time = float64(v)
	default:
		if b, ok = skipBody(b, k, v); !ok {
			return batch{broken: true}
		}
	}
	if !(got.time > 0 && got.time < 1e11) { // not a number is neither
		got.time = 0
	}
	after, whole := skip(b)
	k, count, b, ok := head(b)
	if !ok || k != kindArray {
		got.broken = true
		return got
	}
	if whole && n > 2 && rank != AnyRank {
		if k, v, _, ok := head(after); ok && k != kindNil && (k != kindUint || v != uint64(rank)) {
			got.foreign, got.events, got.skipped = true, int(count), int(count)
			return got
		}
	}
	for range count {
		if !whole { // the event at which it ends is not read
			if _, ok := skip(b); !ok {
				got.broken = true
				return got
			}
		}
		got.events++
		b = d.event(b, to, &got)
	}
	got.broken = !whole
	d.shrink()
	return got
}

// skipBody skips what follows a head.
func skipBody(b []byte, k kind, n uint64) ([]byte, bool) {
	switch k {
	case kindStr, kindBin, kindExt:
		return b[n:], true
	case kindMap:
		n *= 2
	case kindArray:
	default:
		return b, true
	}
	ok := true
	for ; n > 0 && ok; n-- {
		b, ok = skip(b)
	}
	return b, ok
}

// must is skip of a value that is known to be complete.
func must(b []byte) []byte {
	rest, _ := skip(b)
	return rest
}

// shrink gives large buffers back.
func (d *decoder) shrink() {
	if cap(d.stored.Tokens) > keepTokens {
		d.stored.Tokens = nil
	}
	if cap(d.stored.Hashes) > keepHashes {
		d.stored.Hashes = nil
	}
	if cap(d.removed.Hashes) > keepHashes {
		d.removed.Hashes = nil
	}
	if cap(d.stored.Extra) > keepHashes || cap(d.extras) > keepHashes {
		d.stored.Extra, d.extras = nil, nil
	}
}

type eventType uint8

const (
	typeUnknown eventType = iota
	typeStored
	typeRemoved
	typeCleared
)

func typeOf(b []byte) eventType {
	k, n, b, ok := head(b)
	if !ok || k != kindStr {
		return typeUnknown
	}
	switch string(b[:n]) {
	case "BlockStored":
		return typeStored
	case "BlockRemoved":
		return typeRemoved
	case "AllBlocksCleared", "PublisherReset":
		return typeCleared
	}
	return typeUnknown
}

// event reads the event that b begins with, which is complete, and returns what follows it.
func (d *decoder) event(b []byte, to handler, got *batch) []byte {
	k, n, in, _ := head(b)
	var t eventType
	switch k {
	case kindArray:
		if n > 0 {
			t = typeOf(in)
		}
	case kindMap:
		t = d.mapType(in, n)
	}
	if t == typeUnknown {
		if (k == kindArray || k == kindMap) && n > 0 {
			got.skipped++
		} else {
			got.bad++
		}
		return must(b)
	}
	d.reset()
	hashes := &d.stored.Hashes
	fields := storedFields
	if t == typeRemoved {
		hashes, fields = &d.removed.Hashes, removedFields
	}
	if k == kindMap {
		for range n {
			name := fieldNone
			if k, l, s, _ := head(in); k == kindStr {
				name = fieldOf(s[:l])
			}
			in = d.set(name, hashes, must(in))
		}
	} else {
		in = must(in) // the tag
		for i := range n - 1 {
			name := fieldNone
			if t != typeCleared && i < uint64(len(fields)) {
				name = fields[i]
			}
			in = d.set(name, hashes, in)
		}
	}
	switch {
	case d.elsewhere:
		got.skipped++
	case t == typeCleared:
		to.emptied()
	case t == typeRemoved:
		d.finishRemoved(to, got)
	case !d.finishStored():
		got.bad++
	default:
		if d.unknown {
			got.bad++
		}
		if len(d.stored.Hashes) > 0 {
			to.stored(&d.stored)
		}
	}
	return in
}

// mapType finds the type among n members. It is the first in what engines send.
func (d *decoder) mapType(b []byte, n uint64) eventType {
	for range n {
		k, l, s, _ := head(b)
		value := must(b)
		if k == kindStr && string(s[:l]) == "type" {
			return typeOf(value)
		}
		b = must(value)
	}
	return typeUnknown
}

func (d *decoder) reset() {
	s, r := &d.stored, &d.removed
	*s = Stored{Hashes: s.Hashes[:0], Tokens: s.Tokens[:0], Extra: s.Extra[:0]}
	*r = Removed{Hashes: r.Hashes[:0]}
	d.extras = d.extras[:0]
	d.unusable, d.unknown, d.elsewhere, d.extra = false, false, false, false
}
