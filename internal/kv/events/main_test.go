package events

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// pack encodes v as msgpack: nil, numbers, strings, []byte, lists, and maps as object.
func pack(v any) []byte { return appendPacked(nil, v) }

type (
	list   []any
	object []any // name, value, name, value, …
	raw    []byte
)

func appendPacked(b []byte, v any) []byte {
	length := func(short, long byte, n int) {
		if n < 1<<16 {
			b = binary.BigEndian.AppendUint16(append(b, short), uint16(n))
		} else {
			b = binary.BigEndian.AppendUint32(append(b, long), uint32(n))
		}
	}
	switch v := v.(type) {
	case nil:
		b = append(b, 0xc0)
	case raw:
		b = append(b, v...)
	case int:
		switch {
		case v >= 0 && v < 128:
			b = append(b, byte(v))
		case v >= 0 && v < 1<<16:
			b = binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(v))
		default:
			b = binary.BigEndian.AppendUint64(append(b, 0xd3), uint64(v))
		}
	case uint64:
		b = binary.BigEndian.AppendUint64(append(b, 0xcf), v)
	case uint32:
		b = binary.BigEndian.AppendUint32(append(b, 0xce), v)
	case float64:
		b = binary.BigEndian.AppendUint64(append(b, 0xcb), math.Float64bits(v))
	case string:
		length(0xda, 0xdb, len(v))
		b = append(b, v...)
	case []byte:
		length(0xc5, 0xc6, len(v))
		b = append(b, v...)
	case list:
		length(0xdc, 0xdd, len(v))
		for _, e := range v {
			b = appendPacked(b, e)
		}
	case object:
		length(0xde, 0xdf, len(v)/2)
		for _, e := range v {
			b = appendPacked(b, e)
		}
	default:
		panic(fmt.Sprintf("cannot pack %T", v))
	}
	return b
}

// ids are n token ids from first on.
func ids(first, n int) list {
	var l list
	for i := range n {
		l = append(l, first+i)
	}
	return l
}

// storedEvent is an event of the form that SGLang sends, of blocks of 2 tokens.
func storedEvent(hashes ...int) list {
	var h list
	for _, x := range hashes {
		h = append(h, x)
	}
	return list{"BlockStored", h, nil, ids(1, 2*len(hashes)), 2, nil, "GPU"}
}

func removedEvent(hashes ...int) list {
	var h list
	for _, x := range hashes {
		h = append(h, x)
	}
	return list{"BlockRemoved", h, "GPU"}
}

func batchOf(events ...any) []byte { return pack(list{1.5, list(events), 0}) }

// recorder writes down what it is told.
type recorder struct {
	mu    sync.Mutex
	lines []string
}

func (r *recorder) add(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

func (r *recorder) Stored(e *Stored) {
	line := fmt.Sprintf("stored %d", e.Hashes)
	if e.HasParent {
		line += fmt.Sprintf(" after %d", e.Parent)
	}
	if len(e.Tokens) > 0 {
		line += fmt.Sprintf(" of %d: %d", e.BlockSize, e.Tokens)
	}
	for _, s := range []struct{ name, value string }{
		{"adapter", e.Adapter}, {"salt", e.Salt}, {"kind", e.Kind}, {"session", e.Session},
	} {
		if s.value != "" {
			line += " " + s.name + "=" + s.value
		}
	}
	if len(e.Extra) > 0 {
		line += fmt.Sprintf(" extra %q", e.Extra)
	}
	if e.Medium != "" && e.Medium != "GPU" {
		line += " in " + e.Medium
	}
	if e.Group != 0 {
		line += fmt.Sprintf(" group %d", e.Group)
	}
	r.add("%s", line)
}

func (r *recorder) Removed(e *Removed) {
	line := fmt.Sprintf("removed %d", e.Hashes)
	if e.Medium != "" && e.Medium != "GPU" {
		line += " in " + e.Medium
	}
	if e.Group != 0 {
		line += fmt.Sprintf(" group %d", e.Group)
	}
	r.add("%s", line)
}

func (r *recorder) Cleared() { r.add("cleared") }

func (r *recorder) State(s State) {
	r.add("%s", map[State]string{Degraded: "degraded", Live: "live"}[s])
}

// take returns what was told since the last call, a line each.
func (r *recorder) take() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := strings.Join(r.lines, "\n")
	r.lines = nil
	return s
}

func (r *recorder) stored(e *Stored)   { r.Stored(e) }
func (r *recorder) removed(e *Removed) { r.Removed(e) }
func (r *recorder) emptied()           { r.Cleared() }
