package node

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/rawmessage"
)

const (
	// viewLimit is how long the keeper may take to tell of the whole.
	viewLimit = time.Second
	// maxView bounds what it tells, in bytes: some thousand ranks.
	maxView = 16 << 20
)

// gateView is what the keeper told of the whole gate.
type gateView struct {
	Stats admission.Stats `json:"stats"`
	at    admission.Instant
}

// Status is what this member knows.
func (n *Node) Status() cluster.Status {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.m.Tick(n.clock.Now())
	n.handOnLocked()
	return n.m.Status()
}

// GateStats is the state of the gate: that of all members (whole), as the keeper told it
// age ago; or that of this one while it decides alone. It waits a second at most for the
// keeper, and tells the last answer when none comes; the error is that there was none yet.
func (n *Node) GateStats(ctx context.Context) (s admission.Stats, age time.Duration, whole bool, err error) {
	n.mu.Lock()
	now := n.clock.Now()
	s, whole, ok := n.m.GateStats(now)
	var to *sender
	var cc *grpc.ClientConn
	if !whole {
		if to = n.senders[n.m.Status().Promised.Keeper]; to != nil {
			cc = to.cc
		}
	}
	n.mu.Unlock()
	if ok {
		return s, 0, whole, nil
	}
	err = errors.New("no keeper is known")
	if cc != nil {
		v, askErr := n.askView(ctx, cc, to.to)
		if askErr == nil {
			n.lastView.Store(v)
			return v.Stats, 0, true, nil
		}
		err = fmt.Errorf("the keeper %s does not tell: %s", to.to.Name, status.Convert(askErr).Message())
	}
	if v := n.lastView.Load(); v != nil {
		return v.Stats, n.clock.Now().Sub(v.at), true, nil
	}
	return admission.Stats{}, 0, false, err
}

func (n *Node) askView(ctx context.Context, cc *grpc.ClientConn, to cluster.Member) (*gateView, error) {
	ctx, cancel := context.WithTimeout(metadata.NewOutgoingContext(ctx, n.helloTo(to)), viewLimit)
	defer cancel()
	v := &gateView{at: n.clock.Now()}
	var in rawmessage.Message
	if err := cc.Invoke(ctx, viewMethod, &rawmessage.Message{}, &in); err != nil {
		return nil, err
	}
	defer in.Free()
	return v, json.Unmarshal(in.Bytes(keptBuffer), v)
}

// view answers askView of another member.
func (n *Node) view(ctx context.Context, decode func(any) error) (any, error) {
	if _, err := n.admit(ctx); err != nil {
		return nil, err
	}
	var in rawmessage.Message
	if err := decode(&in); err != nil {
		return nil, err
	}
	in.Free()
	n.mu.Lock()
	s, whole, ok := n.m.GateStats(n.clock.Now())
	n.mu.Unlock()
	if !whole || !ok {
		return nil, status.Error(codes.Unavailable, "it is not the keeper")
	}
	b, err := json.Marshal(&gateView{Stats: s})
	switch {
	case err != nil:
		return nil, status.Error(codes.Internal, err.Error())
	case len(b) > maxView:
		return nil, status.Errorf(codes.ResourceExhausted, "the view has %d bytes, the most is %d", len(b), maxView)
	}
	return &rawmessage.Message{Data: mem.BufferSlice{mem.SliceBuffer(b)}}, nil
}

// Stats implements admission.Remote: that of the whole at the keeper, else nil.
func (n *Node) Stats() *admission.Stats {
	n.mu.Lock()
	defer n.mu.Unlock()
	if s, whole, ok := n.m.GateStats(n.clock.Now()); whole && ok {
		return &s
	}
	return nil
}

// Snapshot implements admission.Remote: the whole as it is known here, or nil.
func (n *Node) Snapshot() *admission.Stats {
	if s := n.Stats(); s != nil {
		return s
	}
	if v := n.lastView.Load(); v != nil {
		return &v.Stats
	}
	return nil
}

// poolKey names a pool in Node.pools.
type poolKey struct {
	model string
	role  admission.Role
}

// maxPools bounds the pools whose sum is kept.
const maxPools = 1024

// PoolLoad implements admission.Remote. A sum is kept until the table changes: requests ask
// for it far more often.
func (n *Node) PoolLoad(model string, role admission.Role) (l admission.PoolLoad, known bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	rows := n.m.Rows()
	if rows == nil {
		return l, false
	}
	key := poolKey{model, role}
	if l, known = n.pools[key]; known {
		return l, true
	}
	for _, r := range rows {
		addRow(&l, r, model, role)
	}
	if len(n.pools) >= maxPools {
		clear(n.pools)
	}
	n.pools[key] = l
	return l, true
}

// addRow adds what is booked on a rank of a pool.
func addRow(l *admission.PoolLoad, r *cluster.Row, model string, role admission.Role) {
	s := r.Spec
	if s.Role != role || !contains(s.Models, model) {
		return
	}
	l.Ranks++
	if s.State.Healthy && !s.State.Draining && s.State.Breaker != admission.BreakerOpen {
		l.Candidates++
	}
	if role == admission.RolePrefill {
		l.Requests += int64(r.Load.PrefillLegs)
	} else {
		l.Requests += int64(r.Load.Pending + r.Load.Active)
	}
	l.PrefillTokens += r.Load.Tokens
	l.BatchedTokens += s.Capacity.MaxBatchedTokens
	l.Blocks += r.Load.PendingBlocks + r.Load.ActiveBlocks
	l.KVBlocks += s.Capacity.KVBlocks
}

func contains(models []string, model string) bool {
	for _, m := range models {
		if m == model {
			return true
		}
	}
	return false
}

// Ended is an operator's word that the member of that name is gone for good.
func (n *Node) Ended(name string) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.closed {
		return errClosed
	}
	err := n.m.Ended(n.clock.Now(), name)
	n.handOnLocked()
	return err
}

// HandOver gives the office of the keeper to another member, and returns when this one is
// not the keeper any more.
func (n *Node) HandOver(ctx context.Context) error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return errClosed
	}
	err := n.m.HandOver(n.clock.Now())
	n.handOnLocked()
	n.mu.Unlock()
	if err != nil {
		return err
	}
	return n.await(ctx, func() bool { return n.m.Status().Role != cluster.RoleKeeper })
}
