package sim

import (
	"encoding/binary"
	"math"
	"slices"
)

// EventForm is how KV events are written.
type EventForm string

// The forms. Batches are arrays of the time, the events and the rank in all of them.
const (
	// EventMap: vLLM since June 2026. An event is a map; replies to a replay have the topic.
	EventMap EventForm = "map"
	// EventArray: vLLM before that. An event is an array that begins with its type.
	EventArray EventForm = "array"
	// EventShort: vLLM of 2025, whose arrays end with the medium.
	EventShort EventForm = "array-short"
	// EventSGLang: arrays, an event for each page, signed hashes.
	EventSGLang EventForm = "sglang"
	// EventSGLangMap: SGLang since September 2026.
	EventSGLangMap EventForm = "sglang-map"
)

// EventForms are all forms.
var EventForms = []EventForm{EventMap, EventArray, EventShort, EventSGLang, EventSGLangMap}

// sglang reports whether it is SGLang's: a page an event, signed hashes.
func (f EventForm) sglang() bool { return f == EventSGLang || f == EventSGLangMap }

// maps reports whether events are maps.
func (f EventForm) maps() bool { return f == EventMap || f == EventSGLangMap }

// eventKind is what an event tells.
type eventKind int

const (
	blockStored eventKind = iota
	blockRemoved
	allBlocksCleared
	unknownKind // a type that nobody knows
)

// kvEvent is one event.
type kvEvent struct {
	kind      eventKind
	hashes    []uint64
	parent    uint64
	hasParent bool // else the blocks are the first of a prompt
	ids       []uint32
	size      int // of a block, as it says
	scope     *cacheScope
}

// msgpack, as much as events need.

func packArray(b []byte, n int) []byte {
	switch {
	case n < 16:
		return append(b, 0x90|byte(n))
	case n < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xdc), uint16(n))
	}
	return binary.BigEndian.AppendUint32(append(b, 0xdd), uint32(n))
}

func packString(b []byte, s string) []byte {
	switch n := len(s); {
	case n < 32:
		b = append(b, 0xa0|byte(n))
	case n < 256:
		b = append(b, 0xd9, byte(n))
	case n < 1<<16:
		b = binary.BigEndian.AppendUint16(append(b, 0xda), uint16(n))
	default:
		b = binary.BigEndian.AppendUint32(append(b, 0xdb), uint32(n))
	}
	return append(b, s...)
}

func packUint(b []byte, v uint64) []byte {
	switch {
	case v < 128:
		return append(b, byte(v))
	case v < 1<<8:
		return append(b, 0xcc, byte(v))
	case v < 1<<16:
		return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
	case v < 1<<32:
		return binary.BigEndian.AppendUint32(append(b, 0xce), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xcf), v)
}

func packInt(b []byte, v int64) []byte {
	switch {
	case v >= 0:
		return packUint(b, uint64(v))
	case v >= -32:
		return append(b, byte(v))
	case v >= math.MinInt8:
		return append(b, 0xd0, byte(v))
	case v >= math.MinInt16:
		return binary.BigEndian.AppendUint16(append(b, 0xd1), uint16(v))
	case v >= math.MinInt32:
		return binary.BigEndian.AppendUint32(append(b, 0xd2), uint32(v))
	}
	return binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
}

func packFloat(b []byte, v float64) []byte {
	return binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
}

func packNil(b []byte) []byte { return append(b, 0xc0) }

// orNil packs a string, nil if it is empty.
func orNil(b []byte, s string) []byte {
	if s == "" {
		return packNil(b)
	}
	return packString(b, s)
}

// encoder writes batches.
type encoder struct {
	form  EventForm
	bytes bool // hashes are 32 bytes instead of numbers
}

func (e encoder) hash(b []byte, h uint64) []byte {
	switch {
	case e.bytes:
		b = append(b, 0xc4, 32)
		return binary.BigEndian.AppendUint64(append(b, make([]byte, 24)...), h)
	case e.form.sglang():
		return packInt(b, int64(h))
	}
	return packUint(b, h)
}

func (e encoder) hashes(b []byte, list []uint64) []byte {
	b = packArray(b, len(list))
	for _, h := range list {
		b = e.hash(b, h)
	}
	return b
}

// batch appends a batch of events.
func (e encoder) batch(b []byte, seconds float64, events []kvEvent, rank int) []byte {
	if e.form.sglang() {
		events = pages(events)
	}
	b = packFloat(packArray(b, 3), seconds)
	b = packArray(b, len(events))
	for i := range events {
		b = e.event(b, &events[i])
	}
	return packInt(b, int64(rank))
}

// pages splits stores and removals into one event a page.
func pages(events []kvEvent) []kvEvent {
	var out []kvEvent
	for _, x := range events {
		if len(x.hashes) < 2 || len(x.ids)%len(x.hashes) != 0 {
			out = append(out, x)
			continue
		}
		size := len(x.ids) / len(x.hashes)
		for i := range x.hashes {
			p := x
			p.hashes, p.ids = x.hashes[i:i+1], x.ids[i*size:(i+1)*size]
			if i > 0 {
				p.parent, p.hasParent = x.hashes[i-1], true
			}
			out = append(out, p)
		}
	}
	return out
}

// member is one of an event's, with its name in maps.
type member struct {
	name string
	pack func(b []byte) []byte
}

// event appends an event.
func (e encoder) event(b []byte, x *kvEvent) []byte {
	var name string
	var list []member
	add := func(name string, pack func([]byte) []byte) { list = append(list, member{name, pack}) }
	switch x.kind {
	case blockStored:
		name = "BlockStored"
		list = e.stored(x)
	case blockRemoved:
		name = "BlockRemoved"
		add("block_hashes", func(b []byte) []byte { return e.hashes(b, x.hashes) })
		add("medium", func(b []byte) []byte { return packString(b, "GPU") })
		if e.form == EventMap || e.form == EventArray {
			add("group_idx", func(b []byte) []byte { return packUint(b, 0) })
		}
	case allBlocksCleared:
		name = "AllBlocksCleared"
	default:
		name = "BlockPondered"
		add("block_hashes", func(b []byte) []byte { return e.hashes(b, x.hashes) })
		add("reasons", func(b []byte) []byte { return append(packString(append(b, 0x81), "none"), 0xc2) })
	}
	if !e.form.maps() {
		b = packString(packArray(b, 1+len(list)), name)
		for _, m := range list {
			b = m.pack(b)
		}
		return b
	}
	if n := 1 + len(list); n < 16 {
		b = append(b, 0x80|byte(n))
	} else {
		b = binary.BigEndian.AppendUint16(append(b, 0xde), uint16(n))
	}
	b = packString(packString(b, "type"), name)
	for _, m := range list {
		b = m.pack(packString(b, m.name))
	}
	return b
}

// stored are the members of a BlockStored, in the engine's order.
func (e encoder) stored(x *kvEvent) []member {
	list := []member{
		{"block_hashes", func(b []byte) []byte { return e.hashes(b, x.hashes) }},
		{"parent_block_hash", func(b []byte) []byte {
			if !x.hasParent {
				return packNil(b)
			}
			return e.hash(b, x.parent)
		}},
		{"token_ids", func(b []byte) []byte {
			b = packArray(b, len(x.ids))
			for _, id := range x.ids {
				b = packUint(b, uint64(id))
			}
			return b
		}},
		{"block_size", func(b []byte) []byte { return packInt(b, int64(x.size)) }},
		{"lora_id", func(b []byte) []byte {
			if x.scope.adapterID == 0 {
				return packNil(b)
			}
			return packUint(b, uint64(x.scope.adapterID))
		}},
		{"medium", func(b []byte) []byte { return packString(b, "GPU") }},
	}
	switch e.form {
	case EventSGLang, EventShort:
		return list
	case EventSGLangMap:
		if x.scope.salt != "" {
			list = append(list, member{"cache_salt", func(b []byte) []byte { return packString(b, x.scope.salt) }})
		}
	default:
		list = slices.Concat(list, []member{
			{"lora_name", func(b []byte) []byte { return orNil(b, x.scope.adapter) }},
			{"extra_keys", func(b []byte) []byte { return e.extraKeys(b, x) }},
			{"group_idx", func(b []byte) []byte { return packUint(b, 0) }},
			{"kv_cache_spec_kind", func(b []byte) []byte { return packString(b, "full_attention") }},
		})
	}
	if e.form.maps() && x.scope.session != "" {
		list = append(list, member{"session_id", func(b []byte) []byte { return packString(b, x.scope.session) }})
	}
	return list
}

// extraKeys are what else the hash of each block is made of: the adapter's name in all,
// the cache salt in a prompt's first.
func (e encoder) extraKeys(b []byte, x *kvEvent) []byte {
	b = packArray(b, len(x.hashes))
	for i := range x.hashes {
		var keys []string
		if x.scope.adapter != "" {
			keys = append(keys, x.scope.adapter)
		}
		if x.scope.salt != "" && i == 0 && !x.hasParent {
			keys = append(keys, x.scope.salt)
		}
		if keys == nil {
			b = packNil(b)
			continue
		}
		b = packArray(b, len(keys))
		for _, k := range keys {
			b = packString(b, k)
		}
	}
	return b
}
