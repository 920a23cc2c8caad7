package sim

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"math"
	"net"
	"slices"
	"sync"
	"time"
)

// mostEventBytes bounds what is kept to be repeated, and what waits for one subscriber.
const mostEventBytes = 64 << 20

// publisher sends one rank's batches of KV events to its subscribers, and repeats them.
type publisher struct {
	// Immutable.
	w       *Worker
	rank    int
	opt     *KVEvents
	encoder encoder
	done    chan struct{} // closed when it ends
	serving sync.WaitGroup

	mu          sync.Mutex // guards the fields below
	closed      bool
	listeners   []net.Listener
	conns       map[net.Conn]struct{}
	subscribers []*subscriber
	seq         uint64 // of the next batch
	kept        []keptBatch
	keptBytes   int
}

// keptBatch is a batch that can be repeated.
type keptBatch struct {
	seq     uint64
	payload []byte
}

// eventMessage is a message on its way to a subscriber.
type eventMessage struct {
	topic  string
	bytes  []byte        // of its frames
	pause  time.Duration // between the bytes
	hangUp bool          // closes the connection afterwards
}

// subscriber is a connection to the publisher.
type subscriber struct {
	conn net.Conn
	wake chan struct{} // has room for one signal

	// Guarded by publisher.mu.
	topics  []string
	queue   []eventMessage
	waiting int // bytes in the queue
	counted bool
}

// serve accepts connections and handles each until the publisher ends.
func (p *publisher) serve(ln net.Listener, handle func(net.Conn)) {
	p.mu.Lock()
	p.listeners = append(p.listeners, ln)
	if p.conns == nil {
		p.conns = make(map[net.Conn]struct{})
	}
	p.mu.Unlock()
	p.serving.Go(func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			p.mu.Lock()
			if p.closed {
				p.mu.Unlock()
				_ = c.Close()
				return
			}
			p.conns[c] = struct{}{}
			p.mu.Unlock()
			p.serving.Go(func() {
				defer func() {
					_ = c.Close()
					p.mu.Lock()
					delete(p.conns, c)
					p.mu.Unlock()
				}()
				handle(c)
			})
		}
	})
}

// close ends all connections. It returns when everything has ended; calling it again
// does nothing.
func (p *publisher) close() {
	p.mu.Lock()
	if !p.closed {
		p.closed = true
		close(p.done)
	}
	for _, ln := range p.listeners {
		_ = ln.Close()
	}
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	p.serving.Wait()
}

// rewind numbers batches from 0 again, and forgets those before.
func (p *publisher) rewind() {
	p.mu.Lock()
	p.seq, p.kept, p.keptBytes = 0, nil, 0
	p.mu.Unlock()
}

// subscriber serves one subscriber. Another goroutine reads what it subscribes to.
func (p *publisher) subscriber(c net.Conn) {
	if !p.greets(c) {
		return
	}
	r := bufio.NewReader(c)
	if zmtpHandshake(c, r, "PUB") != nil {
		return
	}
	s := &subscriber{conn: c, wake: make(chan struct{}, 1)}
	p.mu.Lock()
	p.subscribers = append(p.subscribers, s)
	p.mu.Unlock()
	defer p.leave(s)
	var reading sync.WaitGroup
	left := make(chan struct{})
	reading.Go(func() {
		defer close(left)
		p.subscriptions(s, r)
	})
	p.write(s, left)
	_ = c.Close()
	reading.Wait()
}

// leave forgets a subscriber.
func (p *publisher) leave(s *subscriber) {
	p.mu.Lock()
	p.subscribers = slices.DeleteFunc(p.subscribers, func(x *subscriber) bool { return x == s })
	counted := s.counted
	s.counted = false
	p.mu.Unlock()
	if counted {
		p.w.countSubscribers(-1)
	}
}

// countSubscribers counts subscribers of the worker.
func (w *Worker) countSubscribers(n int) {
	w.mu.Lock()
	w.stats.Subscribers += n
	w.notifyLocked()
	w.mu.Unlock()
}

// countBatch counts a batch that was numbered.
func (w *Worker) countBatch() {
	w.mu.Lock()
	w.stats.KVBatches++
	w.notifyLocked()
	w.mu.Unlock()
}

// subscriptions reads what a subscriber asks for until it disconnects.
func (p *publisher) subscriptions(s *subscriber, r *bufio.Reader) {
	change := func(topic string, on bool) {
		p.mu.Lock()
		first := on && !s.counted
		if on {
			s.topics, s.counted = append(s.topics, topic), true
		} else if i := slices.Index(s.topics, topic); i >= 0 {
			s.topics = slices.Delete(s.topics, i, i+1)
		}
		p.mu.Unlock()
		if first {
			p.w.countSubscribers(1)
		}
	}
	for {
		frames, err := readMessage(r, func(name string, rest []byte) error {
			switch name {
			case "SUBSCRIBE", "CANCEL": // since ZMTP 3.1
				change(string(rest), name == "SUBSCRIBE")
			case "PING":
				if len(rest) >= 2 { // a time to live, and what is to be repeated
					p.send(s, eventMessage{bytes: appendCommand(nil, "PONG", rest[2:])})
				}
			}
			return nil
		})
		if err != nil {
			return
		}
		for _, f := range frames {
			if len(f) > 0 && f[0] <= 1 {
				change(string(f[1:]), f[0] == 1)
			}
		}
	}
}

// send queues a message for a subscriber.
func (p *publisher) send(s *subscriber, m eventMessage) {
	p.mu.Lock()
	p.sendLocked(s, m)
	p.mu.Unlock()
}

func (p *publisher) sendLocked(s *subscriber, m eventMessage) {
	if len(s.queue) >= p.opt.HWM || s.waiting+len(m.bytes) > mostEventBytes && len(s.queue) > 0 {
		return // a slow subscriber misses it
	}
	s.queue = append(s.queue, m)
	s.waiting += len(m.bytes)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

// write writes a subscriber's queue until it has left or the publisher ends.
func (p *publisher) write(s *subscriber, left <-chan struct{}) {
	for {
		p.mu.Lock()
		queue := s.queue
		s.queue, s.waiting = nil, 0
		p.mu.Unlock()
		for _, m := range queue {
			p.w.gate.wait(p.done)
			if p.writeMessage(s.conn, m) != nil || m.hangUp {
				return
			}
		}
		if len(queue) > 0 {
			continue
		}
		select {
		case <-s.wake:
		case <-left:
			return
		case <-p.done:
			return
		}
	}
}

// writeMessage writes a message, byte by byte if it has a pause.
func (p *publisher) writeMessage(c net.Conn, m eventMessage) error {
	if m.pause == 0 {
		_, err := c.Write(m.bytes)
		return err
	}
	for i := range m.bytes {
		if _, err := c.Write(m.bytes[i : i+1]); err != nil {
			return err
		}
		t := time.NewTimer(m.pause)
		select {
		case <-t.C:
		case <-p.done:
			t.Stop()
			return net.ErrClosed
		}
	}
	return nil
}

// publish sends a batch, as the lies that apply to it want.
func (p *publisher) publish(events []kvEvent) {
	b := &batchLies{encoder: p.encoder, events: events, seconds: float64(time.Now().UnixNano()) / 1e9, rank: p.w.opt.FirstRank + p.rank, topic: p.opt.Topic}
	for _, l := range p.w.kvLies(p.rank, forBatches) {
		b.apply(l)
	}
	if b.silent {
		return
	}
	defer p.w.countBatch() // once it is unlocked
	p.mu.Lock()
	defer p.mu.Unlock()
	if b.jump {
		p.seq += 1 << 63
	}
	if b.rewind {
		p.seq = 0
	}
	seq := p.seq
	p.seq++
	payload := b.payload()
	if !b.lost {
		p.keepLocked(seq, payload)
	}
	if b.dropped || b.lost {
		return
	}
	m := b.message(seq, payload)
	for range 1 + b.repeats {
		for _, s := range p.subscribers {
			if slices.ContainsFunc(s.topics, func(t string) bool { return bytes.HasPrefix([]byte(m.topic), []byte(t)) }) {
				p.sendLocked(s, m)
			}
		}
	}
}

// keepLocked keeps a batch to be repeated. What is kept is in order: a sequence that
// went back is that of another engine, which knows nothing of the batches before.
func (p *publisher) keepLocked(seq uint64, payload []byte) {
	if n := len(p.kept); n > 0 && seq <= p.kept[n-1].seq {
		p.kept, p.keptBytes = nil, 0
	}
	p.kept = append(p.kept, keptBatch{seq, payload})
	p.keptBytes += len(payload)
	for len(p.kept) > p.opt.Buffer || p.keptBytes > mostEventBytes && len(p.kept) > 1 {
		p.keptBytes -= len(p.kept[0].payload)
		p.kept[0].payload = nil
		p.kept = p.kept[1:]
	}
}

// replayEnd is the sequence number of the message that ends a replay.
var replayEnd = binary.BigEndian.AppendUint64(nil, math.MaxUint64)

// replays answers the requests of one connection for batches from a sequence number on.
func (p *publisher) replays(c net.Conn) {
	r := bufio.NewReader(c)
	if zmtpHandshake(c, r, "ROUTER") != nil {
		return
	}
	for {
		frames, err := readMessage(r, func(name string, rest []byte) error {
			if name == "PING" && len(rest) >= 2 {
				_, err := c.Write(appendCommand(nil, "PONG", rest[2:]))
				return err
			}
			return nil
		})
		if err != nil {
			return
		}
		if len(frames) != 2 || len(frames[0]) > 0 {
			continue // the engine takes nothing else for a request
		}
		start := uint64(0)
		for _, x := range frames[1] { // of any length
			start = start<<8 | uint64(x)
		}
		p.w.gate.wait(p.done)
		if p.repeat(c, start) != nil {
			return
		}
	}
}

// repeat sends the batches from a sequence number on, and the end mark.
func (p *publisher) repeat(c net.Conn, start uint64) error {
	p.mu.Lock()
	kept := slices.Clone(p.kept)
	p.mu.Unlock()
	kept = slices.DeleteFunc(kept, func(b keptBatch) bool { return b.seq < start })
	lie := replayLies{pause: 0, topic: p.encoder.form == EventMap}
	for _, l := range p.w.kvLies(p.rank, forReplays) {
		lie.apply(l)
	}
	if lie.mute {
		return nil
	}
	if lie.empty {
		kept = nil
	}
	if lie.reverse {
		slices.Reverse(kept)
	}
	for {
		for i, b := range kept {
			if lie.truncated && i == (len(kept)+1)/2 {
				return nil // and no end mark
			}
			if lie.pause > 0 {
				t := time.NewTimer(lie.pause)
				select {
				case <-t.C:
				case <-p.done:
					t.Stop()
					return net.ErrClosed
				}
			}
			if err := p.reply(c, lie, p.opt.Topic, binary.BigEndian.AppendUint64(nil, b.seq), b.payload); err != nil {
				return err
			}
		}
		if !lie.endless || len(kept) == 0 {
			break
		}
	}
	if lie.truncated {
		return nil
	}
	return p.reply(c, lie, "", replayEnd, nil)
}

// reply sends one message of a replay: of three frames or, with the topic, of four.
func (p *publisher) reply(c net.Conn, lie replayLies, topic string, seq, payload []byte) error {
	frames := [][]byte{{}, seq, payload}
	if lie.topic {
		frames = [][]byte{{}, []byte(topic), seq, payload}
	}
	if lie.garbage {
		frames = [][]byte{[]byte("?")}
	}
	_, err := c.Write(appendMessage(nil, frames))
	return err
}
