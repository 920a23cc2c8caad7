package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/cluster/store"
)

// Options make a [Node].
type Options struct {
	// Machine is what the machine is made with. Of Self, Address may be empty, then it is
	// Advertise; Name, then it is the address; Versions and Incarnation, then they are given.
	Machine cluster.Options
	// Store is where members find each other. The node closes it.
	Store store.Store
	// Listen is the address to serve other members on, host:port, and Advertise that at
	// which they reach this one; port 0 of either is that of the listener, and an empty
	// Advertise the listener's address.
	Listen, Advertise string
	Security          Security
	// Clock is the gate's, too.
	Clock *Clock
	// Gate is the gate whose requests are decided. The node is given to it with SetRemote
	// before Start.
	Gate *admission.Gate
	// Documents is called with workers that members declared or removed, in order; Ranks,
	// when the keeper's table changed, with a function that goes through its rows. Both may
	// be nil, and are called by one goroutine.
	Documents func([]cluster.Document)
	Ranks     func(each func(func(*cluster.Row)))
	Log       *slog.Logger
	// Dial replaces the dialling of peers in tests.
	Dial func(ctx context.Context, address string) (net.Conn, error)
}

// Node is one member of a cluster. Its methods may be called by any number of goroutines.
type Node struct {
	// immutable
	o        Options
	self     cluster.Member
	clock    *Clock
	log      *slog.Logger
	traces   bool // at debug level
	secrets  secrets
	listener net.Listener
	server   *grpc.Server
	ctx      context.Context // of all goroutines
	cancel   context.CancelCauseFunc
	storeOps chan cluster.StoreOp
	reported chan struct{}

	running    sync.WaitGroup
	timer      *time.Timer
	generation atomic.Uint64
	once       onces
	lastView   atomic.Pointer[gateView]

	mu sync.Mutex
	// guarded by mu
	m       *cluster.Machine
	armedAt admission.Instant
	started bool
	closed  bool
	senders map[cluster.Incarnation]*sender
	streams map[cluster.Incarnation]uint64 // the newest stream from each
	stream  uint64
	ready   []cluster.Incarnation
	moves   map[moveKey]chan cluster.Moved
	ranks   cluster.Observer
	reports bool // some that engines made were not told yet
	refused int  // local tickets that were refused since it was set to 0
	report  report
	pools   map[poolKey]admission.PoolLoad // by the table of ranks as it is
	changed chan struct{}                  // not nil: somebody awaits what is handed on next
}

const never = admission.Instant(1<<63 - 1)

// errClosed ends what runs when the node is closed.
var errClosed = errors.New("this member of the cluster has ended")

// New listens for other members, and makes a node that does nothing else before Start.
func New(o Options) (*Node, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	o.Machine.Complete()
	sec, err := o.Security.secrets(o.Machine.Cluster)
	if err != nil {
		return nil, fmt.Errorf("cannot secure the cluster's port: %w", err)
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return nil, fmt.Errorf("--cluster-listen: %w", err)
	}
	n := &Node{
		o: o, clock: o.Clock, log: o.Log, traces: o.Log.Enabled(context.Background(), slog.LevelDebug), secrets: sec, listener: l, armedAt: never,
		storeOps: make(chan cluster.StoreOp, 1), reported: make(chan struct{}, 1),
		senders: map[cluster.Incarnation]*sender{}, streams: map[cluster.Incarnation]uint64{}, moves: map[moveKey]chan cluster.Moved{},
		pools: map[poolKey]admission.PoolLoad{},
	}
	n.generation.Store(o.Machine.Generation)
	if err := n.fillSelf(); err != nil {
		l.Close()
		return nil, err
	}
	n.ctx, n.cancel = context.WithCancelCause(context.Background())
	n.m = cluster.NewMachine(n.o.Machine, n.clock.Now())
	n.server = n.newServer()
	n.timer = time.NewTimer(time.Hour)
	n.timer.Stop()
	return n, nil
}

// fillSelf completes what the others are to know of this member.
func (n *Node) fillSelf() error {
	self := &n.o.Machine.Self
	if self.Incarnation == 0 {
		self.Incarnation = cluster.Incarnation(n.o.Machine.Random())
	}
	if self.Versions == (cluster.Versions{}) {
		self.Versions = cluster.Versions{Min: cluster.ProtocolMin, Max: cluster.ProtocolVersion}
	}
	if self.Address == "" {
		address, err := advertised(n.o.Advertise, n.listener.Addr().String())
		if err != nil {
			return fmt.Errorf("--cluster-advertise: %w", err)
		}
		self.Address = address
	}
	if self.Name == "" {
		self.Name = self.Address
	}
	n.self = *self
	return nil
}

// advertised is the address at which others reach a listener.
func advertised(advertise, listening string) (string, error) {
	if advertise == "" {
		return listening, nil
	}
	host, port, err := net.SplitHostPort(advertise)
	if err != nil {
		return "", err
	}
	if port == "0" {
		_, port, err = net.SplitHostPort(listening)
	}
	return net.JoinHostPort(host, port), err
}

// Self is this member as the others know it.
func (n *Node) Self() cluster.Member { return n.self }

// Start begins: the store is read, the others are looked for. With required it is an error
// that the store cannot be reached; without, the member looks for it in the background.
func (n *Node) Start(ctx context.Context, required bool) error {
	if required {
		if _, err := n.o.Store.Read(ctx); err != nil {
			return fmt.Errorf("the store of the cluster (%s): %w", n.o.Store, err)
		}
	}
	n.running.Go(func() {
		if err := n.server.Serve(limitConns(n.listener)); err != nil && n.ctx.Err() == nil {
			n.log.Error("the cluster's port is not served any more", "error", err)
		}
	})
	n.running.Go(n.runTimer)
	n.running.Go(n.runStore)
	n.running.Go(n.runReports)
	n.running.Go(n.watchPeers)
	n.step(func(now admission.Instant) {
		n.started = true
		n.m.Tick(now)
	})
	return nil
}

// step calls the machine and hands on what came of it. The clock is read with the mutex
// held: what the machine was told before is before.
func (n *Node) step(f func(now admission.Instant)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return
	}
	f(n.clock.Now())
	n.handOnLocked()
}

// runTimer tells the machine the time when it asked for that.
func (n *Node) runTimer() {
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-n.timer.C:
		}
		n.step(func(now admission.Instant) {
			n.armedAt = never
			if now >= n.m.NextTick() { // else it is not due any more
				n.m.Tick(now)
			}
		})
	}
}

// handOnLocked hands on what came of a call of the machine.
func (n *Node) handOnLocked() {
	for {
		out := n.m.Out()
		again := n.decideLocked(out.Decided)
		if len(out.Renew) > 0 {
			n.o.Gate.Ask(out.Renew...)
		}
		for _, number := range out.Revoked {
			n.o.Gate.Revoke(number)
		}
		for _, m := range out.Moved {
			if ch := n.moves[moveKey{m.Number, m.Attempt}]; ch != nil {
				ch <- m // has room for the one answer
				delete(n.moves, moveKey{m.Number, m.Attempt})
			}
		}
		if out.Store != nil {
			n.storeOps <- *out.Store // has room: there is one at a time
		}
		if out.PeersChanged {
			n.setPeersLocked()
		}
		n.tellLocked(&out)
		if !again {
			break
		}
	}
	if n.changed != nil {
		close(n.changed)
		n.changed = nil
	}
	if !n.started {
		return
	}
	n.ready = n.m.Ready(n.ready[:0])
	for _, to := range n.ready {
		n.senders[to].wakeLocked()
	}
	if next := n.m.NextTick(); next < n.armedAt {
		n.armedAt = next
		n.timer.Reset(max(next.Sub(n.clock.Now()), 0))
	}
}

// decideLocked tells the gate what was decided. What it cannot use goes back: again.
func (n *Node) decideLocked(decided []cluster.Decided) (again bool) {
	for i := range decided {
		d := &decided[i]
		if !d.Granted {
			n.refused++
		}
		taken := n.o.Gate.Decide(d.Number, d.Attempt, &admission.RemoteDecision{
			Granted: d.Granted, Prefill: d.Prefill, Decode: d.Decode, Refusal: d.Refusal,
			Class: d.Grant.Class, Queued: d.Grant.Queued, Waited: d.Grant.Waited, Lacked: d.Grant.Lacked, Choice: d.Grant.Choice,
		})
		if taken {
			n.traceDecided(n.clock.Now(), d)
		}
		if !taken && d.Granted {
			n.m.Step(n.clock.Now(), d.Number, d.Attempt, admission.StepRelease, 0)
			again = true
		}
	}
	return again
}

// runStore does what the machine asks of the store, one after the other.
func (n *Node) runStore() {
	for {
		select {
		case <-n.ctx.Done():
			return
		case op := <-n.storeOps:
			r := n.doStore(&op)
			n.step(func(now admission.Instant) { n.m.Stored(now, r) })
		}
	}
}

func (n *Node) doStore(op *cluster.StoreOp) cluster.StoreResult {
	r := cluster.StoreResult{ID: op.ID}
	ctx, cancel := context.WithTimeout(n.ctx, store.CallLimit)
	defer cancel()
	if op.Write {
		op.Record.Time = time.Now().UTC()
		value, err := json.Marshal(&stored{op.Record, n.secrets.mark})
		if err == nil {
			r.Revision, err = n.o.Store.Write(ctx, value, op.Revision)
		}
		if errors.Is(err, store.ErrConflict) {
			r.Conflict = true
		} else {
			r.Err = err
		}
		return r
	}
	got, err := n.o.Store.Read(ctx)
	if err != nil {
		r.Err = err
		return r
	}
	if r.Revision = got.Revision; r.Revision == "" {
		return r
	}
	var record stored
	if err := json.Unmarshal(got.Value, &record); err != nil {
		r.Err = fmt.Errorf("the record of the cluster cannot be read: %w", err)
	} else if record.Cluster != n.o.Machine.Cluster {
		r.Err = fmt.Errorf("the record is that of the cluster %.80q", record.Cluster)
	} else if record.Mark != n.secrets.mark {
		r.Err = errOtherMark
		n.tryKeeper(ctx, &record.Record)
	} else {
		r.Record = &record.Record
	}
	return r
}

// stored is a record as the store has it. Mark tells with which secret its members talk: who
// has another one can read the record, but must not stand for keeper because it reaches none
// of them.
type stored struct {
	cluster.Record
	Mark string `json:"secured_by,omitempty"`
}

var errOtherMark = errors.New("the record is of members that have another secret, or are secured in another way (--cluster-secret-file, --cluster-tls-cert-file); when these were changed for all members at once, delete the record")

// tryKeeper calls the keeper of a record that others wrote, once an incarnation, so that its
// log has it, too, that somebody with another secret is there.
func (n *Node) tryKeeper(ctx context.Context, r *cluster.Record) {
	for _, x := range r.Members {
		if x.Incarnation != r.Epoch.Keeper || !n.once.first("tried "+x.Incarnation.String()) {
			continue
		}
		cc, err := n.dial(x.Address)
		if err != nil {
			return
		}
		defer cc.Close()
		if stream, err := cc.NewStream(metadata.NewOutgoingContext(ctx, n.helloTo(x)), &sendDesc, sendMethod); err == nil {
			_, err = stream.Header()
			n.log.Warn("the keeper of the cluster was called", "member", x.Name, "address", x.Address, "error", err)
		} else {
			n.log.Warn("the keeper of the cluster does not take this process", "member", x.Name, "address", x.Address, "error", err)
		}
	}
}

// KeeperOf is the name of the keeper that a record names, as the store keeps it; "" if it
// names none. A store shows it to people.
func KeeperOf(value []byte) string {
	var record cluster.Record
	if json.Unmarshal(value, &record) != nil {
		return ""
	}
	for i := range record.Members {
		if record.Members[i].Incarnation == record.Epoch.Keeper {
			return record.Members[i].Name
		}
	}
	return ""
}

// Leave ends the membership as planned: the office goes to another member, if this one has
// it, and the others are told. Then, or when ctx ends, the node is closed.
func (n *Node) Leave(ctx context.Context) {
	_ = n.HandOver(ctx) // there is nobody, or it is not the keeper
	n.step(n.m.Leave)
	n.flush(ctx)
	n.Close()
}

// flush waits until nothing is left to send to those that are reached.
func (n *Node) flush(ctx context.Context) {
	_ = n.await(ctx, func() bool {
		for _, to := range n.m.Ready(nil) {
			if s := n.senders[to]; s != nil && s.cc != nil {
				return false
			}
		}
		for _, s := range n.senders {
			if s.writing {
				return false
			}
		}
		return true
	})
}

// await waits until a condition holds, which is looked at with mu held whenever something
// was handed on.
func (n *Node) await(ctx context.Context, holds func() bool) error {
	for {
		n.mu.Lock()
		if n.closed {
			n.mu.Unlock()
			return errClosed
		}
		done, changed := holds(), n.changed
		if !done && changed == nil {
			changed = make(chan struct{})
			n.changed = changed
		}
		n.mu.Unlock()
		if done {
			return nil
		}
		select {
		case <-changed:
		case <-time.After(pollAgain): // what does not close changed
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

const pollAgain = 10 * time.Millisecond

// Close ends the member at once: others will find that it is lost. Requests of the gate
// that come later are refused.
func (n *Node) Close() {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		n.running.Wait()
		return
	}
	n.closed = true
	n.timer.Stop()
	n.mu.Unlock()
	n.cancel(errClosed)
	n.server.Stop()
	n.listener.Close()
	n.running.Wait()
	_ = n.o.Store.Close()
}
