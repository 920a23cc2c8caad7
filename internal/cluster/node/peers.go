package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/cluster/codec"
	"github.com/sluice-router/sluice/internal/rawmessage"
)

const (
	// dialLimit is how long it may take until a stream to a peer is there.
	dialLimit = 2 * time.Second
	// A peer that cannot be reached is tried again after redialFirst, and later after
	// redialMost at most.
	redialFirst = 50 * time.Millisecond
	redialMost  = time.Second
	// deafAfter is how long a peer may answer nothing on a stream until it is dialled anew:
	// a connection through which nothing passed for long sends again only after as long.
	deafAfter = 2 * time.Second
	// watchEvery is how often that is looked at.
	watchEvery = 250 * time.Millisecond
)

// sender keeps a stream to one peer.
type sender struct {
	// immutable
	n    *Node
	to   cluster.Member
	stop context.CancelFunc // of the goroutine
	wake chan struct{}

	// guarded by Node.mu
	idle    bool             // the goroutine waits for wake
	writing bool             // an envelope was taken that is not written yet
	cc      *grpc.ClientConn // while there is a stream
	since   admission.Instant
	drop    context.CancelCauseFunc // of the stream

	// owned by the goroutine
	buf       []byte
	told      string    // why there is no stream, as it was told last
	sendsFrom time.Time // of the stream that there is
}

// setPeersLocked keeps streams to those that are peers now.
func (n *Node) setPeersLocked() {
	peers := map[cluster.Incarnation]bool{}
	for _, p := range n.m.Peers() {
		peers[p.Incarnation] = true
		if s := n.senders[p.Incarnation]; s != nil {
			if s.to.Address == p.Address {
				continue
			}
			s.stop()
		}
		ctx, stop := context.WithCancel(n.ctx)
		s := &sender{n: n, to: p, stop: stop, wake: make(chan struct{}, 1)}
		n.senders[p.Incarnation] = s
		n.running.Go(func() { s.run(ctx) })
	}
	for x, s := range n.senders {
		if !peers[x] {
			s.stop()
			delete(n.senders, x)
		}
	}
}

// wakeLocked has the goroutine look for something to send, if it waits for that.
func (s *sender) wakeLocked() {
	if s != nil && s.idle {
		s.idle = false
		select {
		case s.wake <- struct{}{}:
		default: // it is woken already
		}
	}
}

// run keeps the stream until ctx ends.
func (s *sender) run(ctx context.Context) {
	wait := redialFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := s.connect(ctx)
		if ctx.Err() != nil {
			return
		}
		s.tell(err)
		if time.Since(began) > deafAfter {
			wait = redialFirst
		}
		if status.Code(err) == codes.FailedPrecondition {
			wait = redialMost // it was refused: trying again soon is of no use
		}
		select {
		case <-ctx.Done():
		case <-time.After(wait/2 + rand.N(wait)):
		}
		wait = min(2*wait, redialMost)
	}
}

// tell logs why there is no stream, once.
func (s *sender) tell(err error) {
	text, why := err.Error(), "unreachable"
	if st, ok := status.FromError(err); ok {
		text = st.Message()
	}
	if status.Code(err) == codes.NotFound && s.to.Name == s.n.self.Name && s.to.Address == s.n.self.Address {
		return // it is who had this process' name before
	}
	if status.Code(err) == codes.FailedPrecondition {
		why = text // texts of connections that fail differ in ports
	}
	if why == s.told || status.Code(err) == codes.NotFound && s.to.Name == s.n.self.Name {
		return // it was told, or this process was started again and reached itself
	}
	s.told = why
	s.n.log.Warn("no connection to a member of the cluster", "member", s.to.Name, "address", s.to.Address, "error", text)
}

var (
	errDeaf   = errors.New("it answers nothing")
	errNoTime = fmt.Errorf("no connection within %v", dialLimit)
)

// connect opens a stream and sends on it until it ends.
func (s *sender) connect(ctx context.Context) error {
	n := s.n
	cc, err := n.dial(s.to.Address)
	if err != nil {
		return err
	}
	defer cc.Close()
	ctx, drop := context.WithCancelCause(ctx)
	defer drop(nil)
	limit := time.AfterFunc(dialLimit, func() { drop(errNoTime) })
	defer limit.Stop()
	stream, err := cc.NewStream(metadata.NewOutgoingContext(ctx, n.helloTo(s.to)), &sendDesc, sendMethod)
	if err == nil {
		// The peer tells at once that it accepts the stream, or why not.
		_, err = stream.Header()
	}
	if !limit.Stop() || err != nil {
		return cause(ctx, err)
	}
	ended := make(chan error, 1)
	n.running.Go(func() {
		var m rawmessage.Message
		err := stream.RecvMsg(&m)
		m.Free()
		if err == nil || err == io.EOF {
			err = errors.New("it ended the stream")
		}
		ended <- err
		drop(err)
	})
	n.mu.Lock()
	s.cc, s.since, s.drop = cc, n.clock.Now(), drop
	n.mu.Unlock()
	s.sendsFrom = time.Now()
	err = s.send(ctx, stream)
	n.mu.Lock()
	s.cc, s.idle, s.writing, s.drop = nil, false, false, nil
	n.mu.Unlock()
	drop(err)
	select {
	case <-s.wake:
	default:
	}
	if end := <-ended; errors.Is(err, io.EOF) {
		err = end
	}
	return cause(ctx, err)
}

// cause is why a stream ended: what ended its context, if that was it.
func cause(ctx context.Context, err error) error {
	if c := context.Cause(ctx); c != nil && !errors.Is(c, context.Canceled) && !errors.Is(c, io.EOF) {
		return c
	}
	if err == nil {
		return errNoTime
	}
	return err
}

// send takes envelopes and writes them, as long as there is a stream.
func (s *sender) send(ctx context.Context, stream grpc.ClientStream) error {
	n := s.n
	w := codec.NewWriter()
	beat := time.NewTimer(n.o.Machine.Beat)
	defer beat.Stop()
	var e *cluster.Envelope
	for {
		e = s.take(e)
		if e == nil {
			select {
			case <-s.wake:
				runtime.Gosched() // whoever is about to add something does so first
			case <-beat.C:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			continue
		}
		beat.Reset(n.o.Machine.Beat)
		var err error
		if s.buf, err = w.Append(s.buf[:0], e); err != nil {
			n.log.Error("an envelope for a member of the cluster cannot be written", "member", s.to.Name, "error", err)
			return err
		}
		m := &rawmessage.Message{Data: mem.BufferSlice{mem.Copy(s.buf, mem.DefaultBufferPool())}}
		if cap(s.buf) > keptBuffer {
			s.buf = nil
		}
		err = stream.SendMsg(m)
		m.Free()
		if err != nil {
			return err
		}
		s.connected()
	}
}

// settled is how long a stream must have been there to count as a connection: the other
// side may refuse it a moment after it was opened.
const settled = time.Second

// connected tells that there is a connection, where it was told that there is none.
func (s *sender) connected() {
	if s.told == "" || time.Since(s.sendsFrom) < settled {
		return
	}
	s.told = ""
	s.n.log.Info("connected to a member of the cluster again", "member", s.to.Name, "address", s.to.Address)
}

// rawCodec carries envelopes that are encoded already.
const rawCodec = rawmessage.Codec("sluice")

// keptBuffer is the largest buffer that is kept for the next envelope, in bytes.
const keptBuffer = 256 << 10

// take takes an envelope if one is ready, else the goroutine will be woken. sent is the one
// before, or nil.
func (s *sender) take(sent *cluster.Envelope) *cluster.Envelope {
	n := s.n
	n.mu.Lock()
	defer n.mu.Unlock()
	now := n.clock.Now()
	s.writing = false
	if sent != nil {
		n.m.Sent(sent)
	}
	if n.closed || !n.m.IsReady(now, s.to.Incarnation) {
		s.idle = true
		if n.changed != nil {
			close(n.changed)
			n.changed = nil
		}
		return nil
	}
	s.idle, s.writing = false, true
	select {
	case <-s.wake:
	default:
	}
	e := n.m.Take(now, s.to.Incarnation)
	n.handOnLocked()
	return e
}

// watchPeers dials peers anew that answer nothing, and tells what came together.
func (n *Node) watchPeers() {
	t := time.NewTicker(watchEvery)
	defer t.Stop()
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-t.C:
		}
		n.tellReports()
		n.mu.Lock()
		now := n.clock.Now()
		for _, s := range n.senders {
			if s.drop != nil && now.Sub(s.since) > deafAfter && n.m.Quiet(now, s.to.Incarnation) > deafAfter {
				s.drop(errDeaf)
			}
		}
		n.mu.Unlock()
	}
}

// dial makes the connection for one stream. It is not used again when it was lost.
func (n *Node) dial(address string) (*grpc.ClientConn, error) {
	dialer := n.o.Dial
	if dialer == nil {
		d := net.Dialer{Timeout: dialLimit}
		dialer = func(ctx context.Context, address string) (net.Conn, error) { return d.DialContext(ctx, "tcp", address) }
	}
	return grpc.NewClient("passthrough:///"+address,
		grpc.WithContextDialer(dialer),
		grpc.WithTransportCredentials(n.secrets.client(address)),
		grpc.WithUserAgent("sluice"),
		grpc.WithNoProxy(),
		grpc.WithDisableServiceConfig(),
		grpc.WithDisableRetry(),
		grpc.WithIdleTimeout(0),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Minute, Multiplier: 1, MaxDelay: time.Minute}, MinConnectTimeout: dialLimit}),
		grpc.WithInitialWindowSize(window), grpc.WithInitialConnWindowSize(window),
		grpc.WithDefaultCallOptions(grpc.ForceCodecV2(rawCodec), grpc.MaxCallRecvMsgSize(maxView), grpc.MaxCallSendMsgSize(codec.MaxMessage)),
	)
}
