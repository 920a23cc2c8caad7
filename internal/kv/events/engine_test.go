package events

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// peer is the engine's side of a ZMTP connection.
type peer struct {
	net.Conn
}

func (p peer) frame(flags byte, body []byte) error {
	head := []byte{flags, byte(len(body))}
	if len(body) > 255 {
		head = binary.BigEndian.AppendUint64([]byte{flags | flagLong}, uint64(len(body)))
	}
	_, err := p.Write(append(head, body...))
	return err
}

func (p peer) message(frames ...[]byte) error {
	for i, f := range frames {
		flags := byte(flagMore)
		if i == len(frames)-1 {
			flags = 0
		}
		if err := p.frame(flags, f); err != nil {
			return err
		}
	}
	return nil
}

// read reads a frame of less than 256 bytes.
func (p peer) read() ([]byte, error) {
	var head [2]byte
	if _, err := io.ReadFull(p, head[:]); err != nil {
		return nil, err
	}
	b := make([]byte, head[1])
	_, err := io.ReadFull(p, b)
	return b, err
}

func (p peer) greet() error {
	var theirs [64]byte
	if _, err := io.ReadFull(p, theirs[:]); err != nil {
		return err
	}
	ours := greeting
	ours[11] = 1 // as libzmq says
	_, err := p.Write(ours[:])
	return err
}

func (p peer) handshake(socket string) error {
	if err := p.greet(); err != nil {
		return err
	}
	if _, err := p.read(); err != nil {
		return err
	}
	return p.frame(flagCommand, appendProperty(appendProperty([]byte("\x05READY"), "Identity", ""), "socket-type", socket))
}

func number(seq uint64) []byte { return binary.BigEndian.AppendUint64(nil, seq) }

// engine is an engine that publishes. It keeps all batches for replays, from first on.
type engine struct {
	topic string
	old   bool // the form of replies without topic
	// onReplay answers a request for a replay in place of what is right.
	onReplay func(p peer, start uint64)

	mu      sync.Mutex
	log     [][]byte
	first   uint64
	subs    map[peer]bool
	down    bool
	replays []uint64 // what was asked for
	dials   int
	wg      sync.WaitGroup
}

const (
	atEvents = "tcp://worker:5557"
	atReplay = "tcp://worker:6557"
)

var errRefused = errors.New("connection refused")

// dial connects a stream to the engine by a pipe, so that virtual time stands still only
// while both wait.
func (e *engine) dial(_ context.Context, _, address string) (net.Conn, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.dials++
	if e.down {
		return nil, errRefused
	}
	ours, theirs := net.Pipe()
	e.wg.Go(func() {
		defer ours.Close()
		if address == "worker:6557" {
			e.serveReplay(peer{ours})
		} else {
			e.serveEvents(peer{ours})
		}
	})
	return theirs, nil
}

func (e *engine) serveEvents(p peer) {
	if p.handshake("XPUB") != nil {
		return
	}
	if _, err := p.read(); err != nil { // the subscription
		return
	}
	e.mu.Lock()
	if e.subs == nil {
		e.subs = map[peer]bool{}
	}
	e.subs[p] = true
	e.mu.Unlock()
	_, _ = p.read() // until it is closed
	e.mu.Lock()
	delete(e.subs, p)
	e.mu.Unlock()
}

func (e *engine) serveReplay(p peer) {
	if p.handshake("ROUTER") != nil {
		return
	}
	if delimiter, err := p.read(); err != nil || len(delimiter) != 0 {
		return
	}
	start, err := p.read()
	if err != nil {
		return
	}
	e.mu.Lock()
	n := binary.BigEndian.Uint64(start)
	e.replays = append(e.replays, n)
	answer, log, first := e.onReplay, e.log, e.first
	e.mu.Unlock()
	if answer != nil {
		answer(p, n)
		return
	}
	for seq := max(n, first); seq < uint64(len(log)); seq++ {
		e.reply(p, seq, log[seq])
	}
	e.reply(p, endMark, nil)
	_, _ = p.read()
}

func (e *engine) reply(p peer, seq uint64, payload []byte) error {
	switch topic := []byte(e.topic); {
	case e.old:
		return p.message(nil, number(seq), payload)
	case seq == endMark:
		return p.message(nil, nil, number(seq), nil)
	default:
		return p.message(nil, topic, number(seq), payload)
	}
}

// make adds a batch without sending it, as if it was dropped on its way.
func (e *engine) make(events ...any) (seq uint64, payload []byte) {
	e.mu.Lock()
	defer e.mu.Unlock()
	payload = batchOf(events...)
	e.log = append(e.log, payload)
	return uint64(len(e.log) - 1), payload
}

func (e *engine) publish(events ...any) {
	seq, payload := e.make(events...)
	e.send(seq, payload)
}

func (e *engine) send(seq uint64, payload []byte) {
	e.sendAll([]byte(e.topic), number(seq), payload)
}

func (e *engine) sendAll(frames ...[]byte) {
	for _, p := range e.peers() {
		p.message(frames...)
	}
	synctest.Wait()
}

func (e *engine) peers() (all []peer) {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	for p := range e.subs {
		all = append(all, p)
	}
	return all
}

// asked returns what replays were asked for since the last call.
func (e *engine) asked() []uint64 {
	synctest.Wait()
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.replays
	e.replays = nil
	return r
}

// answerReplays has requests for replays answered by f; nil: as is right.
func (e *engine) answerReplays(f func(p peer, start uint64)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.onReplay = f
}

// forget has the engine replay nothing before first.
func (e *engine) forget(first uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.first = first
}

func (e *engine) disconnect() {
	for _, p := range e.peers() {
		p.Close()
	}
}

// stop makes connections fail until start; the engine that then starts knows nothing.
func (e *engine) stop() {
	e.mu.Lock()
	e.down = true
	e.mu.Unlock()
	e.disconnect()
}

func (e *engine) start() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down, e.log, e.first = false, nil, 0
}

// setup is a stream that follows an engine in virtual time.
type setup struct {
	*testing.T
	engine  engine
	opts    Options
	stream  *Stream
	sink    recorder
	emptied int
	started time.Time
}

// story runs a test in virtual time. The stream ends after it, and nothing of it may be left.
func story(t *testing.T, replay bool, f func(s *setup)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &setup{T: t, opts: Options{Endpoint: atEvents}, started: time.Now()}
		s.engine.topic = "kv@w0@tiny"
		if replay {
			s.opts.Replay = atReplay
		}
		s.opts.Dial = s.engine.dial
		s.opts.Topic = "kv@"
		s.opts.Emptied = func() { s.emptied++ }
		f(s)
	})
}

// run starts the stream.
func (s *setup) run() {
	s.Helper()
	var err error
	if s.stream, err = New(s.opts); err != nil {
		s.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		s.stream.Run(ctx, &s.sink)
	}()
	s.Cleanup(func() {
		cancel()
		<-ended
		if strings.HasSuffix(s.sink.take(), "live") {
			s.Error("live after its end")
		}
		s.engine.disconnect()
		s.engine.wg.Wait()
	})
	synctest.Wait()
}

// take returns what the sink was told since the last call.
func (s *setup) take() string {
	synctest.Wait()
	return s.sink.take()
}

// told compares what the sink was told since the last call.
func (s *setup) told(want string) {
	s.Helper()
	if got := s.take(); got != want {
		s.Fatalf("told:\n%s\nwant:\n%s", got, want)
	}
}

// counted compares counters.
func (s *setup) counted(get func(Snapshot) []uint64, want ...uint64) {
	s.Helper()
	synctest.Wait()
	got := get(s.stream.Snapshot())
	for i := range want {
		if got[i] != want[i] {
			s.Fatalf("counters %d, want %d: %+v", got, want, s.stream.Snapshot())
		}
	}
}
