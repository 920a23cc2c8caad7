package sim

import (
	"encoding/binary"
	"fmt"
	"math"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	vllmpb "github.com/sluice-router/sluice/internal/enginepb/vllm"
)

// KVLie is a deviation of a worker's KV events from what its cache does, or from the
// protocol.
type KVLie struct {
	// Kind is what is wrong, one of KVLies.
	Kind string
	// Value belongs to some kinds.
	Value string
	// Skip lets that many batches (connections, replays) pass first; Count is how many
	// it then applies to, 0: all.
	Skip, Count int
	// Rank restricts it to a rank, if HasRank is set.
	Rank    int
	HasRank bool
	// Pause belongs to some kinds.
	Pause time.Duration

	seen int // guarded by Worker.mu
}

// lieScope is what a lie applies to.
type lieScope int

const (
	forBatches lieScope = iota
	forConnections
	forReplays
)

// lieKinds are the kinds of lies.
var lieKinds = map[string]lieScope{
	"drop": forBatches, "lose": forBatches, "repeat": forBatches, "jump": forBatches, "rewind": forBatches, "silent": forBatches,
	"block-size": forBatches, "tokens": forBatches, "unknown": forBatches, "nan": forBatches, "topic": forBatches, "dp-rank": forBatches,
	"frames": forBatches, "huge": forBatches, "deep": forBatches, "cut": forBatches, "own-parent": forBatches, "lost-parent": forBatches,
	"twice": forBatches, "remove": forBatches, "bytes": forBatches, "form": forBatches, "close": forBatches, "trickle": forBatches,
	"mute": forConnections, "http": forConnections, "hang-up": forConnections,
	"replay-mute": forReplays, "replay-empty": forReplays, "replay-slow": forReplays, "replay-cut": forReplays,
	"replay-endless": forReplays, "replay-reverse": forReplays, "replay-form": forReplays, "replay-garbage": forReplays,
}

// KVLieHelp lists the kinds of lies and the keys that ParseKVLie reads.
const KVLieHelp = `kind=KIND                   what is wrong
skip=N, count=N             skip the first N batches (connections, replays); then apply to N of them (0: all)
rank=N                      only that data-parallel rank
value=X, pause=D            of the kinds below that name them
Batches: drop (numbered, not sent; replays have it), lose (replays do not have it either), repeat (sent twice),
 jump (the sequence, by 2^63), rewind (the sequence, to 0), silent (no events at all), block-size (value=N),
 tokens (value=N token ids in a store), unknown (an event of an unknown type before the others), nan (the time),
 topic (value=TEXT), dp-rank (value=N), frames (value=N of them), huge (announces a frame of 2^40 bytes), deep
 (a payload of 100000 arrays in each other), cut (half a payload), own-parent, lost-parent (of a store), twice (each
 hash), remove (of what was never stored), bytes (hashes of 32 bytes), form (value=FORM), close (the connection,
 behind the batch), trickle (a byte each pause=D)
Connections: mute (accepted, not greeted), http (another protocol), hang-up (closed at once)
Replays: replay-mute (no answer), replay-empty (the end mark alone), replay-slow (pause=D before each batch),
 replay-cut (half, and no end mark), replay-endless, replay-reverse (the last batch first), replay-form (with the
 topic where it has none, and the other way round), replay-garbage
`

// ParseKVLie reads "kind=KIND,key=value,…".
func ParseKVLie(s string) (KVLie, error) {
	var l KVLie
	for part := range strings.SplitSeq(s, ",") {
		key, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		if !ok {
			return l, fmt.Errorf("cannot read KV lie %q: want key=value,key=value", s)
		}
		var err error
		switch key {
		case "kind":
			l.Kind = value
		case "value":
			l.Value = value
		case "skip":
			l.Skip, err = strconv.Atoi(value)
		case "count":
			l.Count, err = strconv.Atoi(value)
		case "rank":
			l.HasRank = true
			l.Rank, err = strconv.Atoi(value)
		case "pause":
			l.Pause, err = time.ParseDuration(value)
		default:
			return l, fmt.Errorf("cannot read KV lie %q: no such key: %s", s, key)
		}
		if err != nil {
			return l, fmt.Errorf("cannot read KV lie %q: %w", s, err)
		}
	}
	return l, l.check()
}

func (l *KVLie) check() error {
	if _, ok := lieKinds[l.Kind]; !ok {
		return fmt.Errorf("cannot tell a KV lie of kind %q: there is none", l.Kind)
	}
	switch n, err := strconv.Atoi(l.Value); l.Kind {
	case "block-size", "tokens", "dp-rank", "frames":
		if err != nil || n > 1<<24 || l.Kind != "dp-rank" && l.Kind != "block-size" && n < 0 {
			return fmt.Errorf("cannot tell a KV lie of kind %s with value %q: want a number", l.Kind, l.Value)
		}
	case "form":
		if !slices.Contains(EventForms, EventForm(l.Value)) {
			return fmt.Errorf("cannot tell a KV lie of kind form with value %q: want one of %v", l.Value, EventForms)
		}
	}
	if l.Skip < 0 || l.Count < 0 || l.Pause < 0 {
		return fmt.Errorf("cannot tell a KV lie with skip %d, count %d and pause %s: want positive numbers", l.Skip, l.Count, l.Pause)
	}
	if l.Kind == "trickle" || l.Kind == "replay-slow" {
		def(&l.Pause, time.Second)
	}
	return nil
}

// AddKVLie makes the worker tell a lie from now on, beside those it tells.
func (w *Worker) AddKVLie(l KVLie) error {
	if err := l.check(); err != nil {
		return err
	}
	if w.opt.GRPC {
		return fmt.Errorf("cannot make %s lie: it tells its KV events over gRPC, where a fault with path=%s does it", w.id, vllmpb.VllmEngine_SubscribeKvEvents_FullMethodName)
	}
	w.mu.Lock()
	w.lies = append(w.lies, &l)
	w.mu.Unlock()
	return nil
}

// ClearKVLies makes the worker tell the truth from now on.
func (w *Worker) ClearKVLies() {
	w.mu.Lock()
	w.lies = nil
	w.mu.Unlock()
}

// kvLies are the lies that apply to the next batch, connection or replay of a rank.
func (w *Worker) kvLies(rank int, scope lieScope) []KVLie {
	w.mu.Lock()
	defer w.mu.Unlock()
	var list []KVLie
	for _, l := range w.lies {
		if lieKinds[l.Kind] != scope || l.HasRank && l.Rank != rank {
			continue
		}
		if l.seen++; l.seen > l.Skip && (l.Count == 0 || l.seen <= l.Skip+l.Count) {
			list = append(list, *l)
		}
	}
	return list
}

// greets applies the lies about connections. It returns false if the connection has had
// its answer.
func (p *publisher) greets(c net.Conn) bool {
	for _, l := range p.w.kvLies(p.rank, forConnections) {
		switch l.Kind {
		case "hang-up":
			return false
		case "http":
			_, _ = c.Write([]byte("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"))
			return false
		case "mute":
			var b [512]byte
			for {
				if _, err := c.Read(b[:]); err != nil { // until the peer disconnects
					return false
				}
			}
		}
	}
	return true
}

// batchLies is a batch that may be lied about.
type batchLies struct {
	encoder encoder
	events  []kvEvent
	seconds float64
	rank    int
	topic   string

	silent, dropped, lost, jump, rewind bool
	repeats                             int
	frames                              int // 0: three
	huge, deep, cut, hangUp             bool
	pause                               time.Duration
}

func (b *batchLies) apply(l KVLie) {
	n, _ := strconv.Atoi(l.Value)
	// stores changes each store, in a copy: the truth stays as it is.
	stores := func(change func(*kvEvent)) {
		b.events = slices.Clone(b.events)
		for i := range b.events {
			if x := &b.events[i]; x.kind == blockStored && len(x.hashes) > 0 {
				change(x)
			}
		}
	}
	switch l.Kind {
	case "drop":
		b.dropped = true
	case "lose":
		b.lost = true
	case "repeat":
		b.repeats++
	case "jump":
		b.jump = true
	case "rewind":
		b.rewind = true
	case "silent":
		b.silent = true
	case "block-size":
		stores(func(x *kvEvent) { x.size = n })
	case "tokens":
		stores(func(x *kvEvent) {
			x.ids = slices.Repeat(x.ids, n/max(1, len(x.ids))+1)[:n]
		})
	case "unknown":
		b.events = append([]kvEvent{{kind: unknownKind, hashes: []uint64{1, 2}}}, b.events...)
	case "nan":
		b.seconds = math.NaN()
	case "topic":
		b.topic = l.Value
	case "dp-rank":
		b.rank = n
	case "frames":
		b.frames = max(1, n)
	case "huge":
		b.huge = true
	case "deep":
		b.deep = true
	case "cut":
		b.cut = true
	case "own-parent":
		stores(func(x *kvEvent) { x.parent, x.hasParent = x.hashes[0], true })
	case "lost-parent":
		stores(func(x *kvEvent) { x.parent, x.hasParent = ^x.hashes[0], true })
	case "twice":
		stores(func(x *kvEvent) {
			x.hashes, x.ids = slices.Concat(x.hashes, x.hashes), slices.Concat(x.ids, x.ids)
		})
	case "remove":
		b.events = append([]kvEvent{{kind: blockRemoved, hashes: []uint64{0xdead, 0xbeef}}}, b.events...)
	case "bytes":
		b.encoder.bytes = true
	case "form":
		b.encoder.form = EventForm(l.Value)
	case "close":
		b.hangUp = true
	case "trickle":
		b.pause = l.Pause
	}
}

// payload is the batch's third frame.
func (b *batchLies) payload() []byte {
	if b.deep {
		deep := make([]byte, 100000, 100001)
		for i := range deep {
			deep[i] = 0x91
		}
		return append(deep, 0xc0)
	}
	payload := b.encoder.batch(nil, b.seconds, b.events, b.rank)
	if b.cut {
		payload = payload[:len(payload)/2]
	}
	return payload
}

// message is what a subscriber gets.
func (b *batchLies) message(seq uint64, payload []byte) eventMessage {
	m := eventMessage{topic: b.topic, pause: b.pause, hangUp: b.hangUp}
	frames := [][]byte{[]byte(b.topic), binary.BigEndian.AppendUint64(nil, seq), payload}
	for b.frames > len(frames) {
		frames = append(frames, []byte("more"))
	}
	if b.frames > 0 {
		frames = frames[:b.frames]
	}
	m.bytes = appendMessage(nil, frames)
	if b.huge {
		head := appendFrame(appendFrame(nil, zmtpMore, frames[0]), zmtpMore, frames[min(1, len(frames)-1)])
		head = binary.BigEndian.AppendUint64(append(head, zmtpLong), 1<<40)
		m.bytes = append(head, payload...)
	}
	return m
}

// replayLies is a replay that may be lied about.
type replayLies struct {
	mute, empty, truncated, endless, garbage, reverse bool
	topic                                             bool // replies have the topic
	pause                                             time.Duration
}

func (r *replayLies) apply(l KVLie) {
	switch l.Kind {
	case "replay-mute":
		r.mute = true
	case "replay-empty":
		r.empty = true
	case "replay-slow":
		r.pause = l.Pause
	case "replay-cut":
		r.truncated = true
	case "replay-endless":
		r.endless = true
	case "replay-reverse":
		r.reverse = true
	case "replay-form":
		r.topic = !r.topic
	case "replay-garbage":
		r.garbage = true
	}
}
