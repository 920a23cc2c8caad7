package node

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/cluster"
	"github.com/sluice-router/sluice/internal/cluster/codec"
	"github.com/sluice-router/sluice/internal/rawmessage"
)

// The service that members offer each other.
const (
	serviceName = "sluice.cluster.v1.Gate"
	sendMethod  = "/" + serviceName + "/Send"
	viewMethod  = "/" + serviceName + "/View"
)

var serviceDesc = grpc.ServiceDesc{
	ServiceName: serviceName,
	HandlerType: (*any)(nil),
	Streams: []grpc.StreamDesc{{
		StreamName: "Send", ClientStreams: true,
		Handler: func(srv any, stream grpc.ServerStream) error { return srv.(*Node).receive(stream) },
	}},
	Methods: []grpc.MethodDesc{{
		MethodName: "View",
		Handler: func(srv any, ctx context.Context, decode func(any) error, _ grpc.UnaryServerInterceptor) (any, error) {
			return srv.(*Node).view(ctx, decode)
		},
	}},
}

// sendDesc is what a caller has to know of Send.
var sendDesc = grpc.StreamDesc{StreamName: "Send", ClientStreams: true}

const (
	// window is how many bytes a peer may send ahead of its reader.
	window = 1 << 20
	// maxConns bounds the connections to the port: what other members have, and what does
	// not get beyond the handshake.
	maxConns       = 256
	handshakeLimit = 5 * time.Second
	// A connection that lost its peer is found by pings.
	pingAfter, pingLimit = 10 * time.Second, 5 * time.Second
)

func (n *Node) newServer() *grpc.Server {
	s := grpc.NewServer(
		grpc.Creds(telling{n.secrets.server(), n.handshakeFailed}),
		grpc.ForceServerCodecV2(rawCodec),
		grpc.MaxRecvMsgSize(codec.MaxMessage),
		grpc.MaxConcurrentStreams(8),
		grpc.MaxHeaderListSize(8<<10),
		grpc.ConnectionTimeout(handshakeLimit),
		grpc.InitialWindowSize(window), grpc.InitialConnWindowSize(window),
		grpc.KeepaliveParams(keepalive.ServerParameters{Time: pingAfter, Timeout: pingLimit}),
	)
	s.RegisterService(&serviceDesc, n)
	return s
}

// handshakeFailed tells of somebody who cannot be a member, once for each host and error.
func (n *Node) handshakeFailed(from net.Addr, err error) {
	host, _, _ := net.SplitHostPort(from.String())
	if op := new(net.OpError); errors.As(err, &op) && op.Op != "remote error" {
		err = op.Err // its text has the port, which is another each time
	}
	if errors.Is(err, io.EOF) || !n.once.first(host+err.Error()) {
		return // somebody looked whether the port is open
	}
	n.log.Warn("a connection to the cluster's port was refused", "from", host, "error", err)
}

// hello is what a call says of who calls whom.
type hello struct {
	Cluster, Name string
	From, To      cluster.Incarnation
	Versions      cluster.Versions
}

func (n *Node) helloTo(to cluster.Member) metadata.MD {
	return metadata.Pairs(
		"sluice-cluster", n.o.Machine.Cluster, "sluice-name", n.self.Name,
		"sluice-from", n.self.Incarnation.String(), "sluice-to", to.Incarnation.String(),
		"sluice-versions", fmt.Sprintf("%d-%d", n.self.Versions.Min, n.self.Versions.Max),
	)
}

func readHello(ctx context.Context) (h hello, err error) {
	md, _ := metadata.FromIncomingContext(ctx)
	get := func(key string) string {
		if v := md.Get(key); len(v) == 1 {
			return v[0]
		}
		err = status.Errorf(codes.InvalidArgument, "the call does not say %s", key)
		return ""
	}
	h.Cluster, h.Name = get("sluice-cluster"), get("sluice-name")
	from, to, versions := get("sluice-from"), get("sluice-to"), get("sluice-versions")
	if err != nil {
		return h, err
	}
	f, err1 := strconv.ParseUint(from, 16, 64)
	t, err2 := strconv.ParseUint(to, 16, 64)
	_, err3 := fmt.Sscanf(versions, "%d-%d", &h.Versions.Min, &h.Versions.Max)
	if err := errors.Join(err1, err2, err3); err != nil || f == 0 {
		return h, status.Error(codes.InvalidArgument, "the call does not say who calls whom")
	}
	h.From, h.To = cluster.Incarnation(f), cluster.Incarnation(t)
	return h, nil
}

// admit refuses whom this member cannot talk to. Both sides log why, each once.
func (n *Node) admit(ctx context.Context) (hello, error) {
	h, err := readHello(ctx)
	if err == nil {
		switch {
		case h.Cluster != n.o.Machine.Cluster:
			err = status.Errorf(codes.FailedPrecondition, "%s is a member of the cluster %q, not of %.80q (--cluster-name)", n.self.Name, n.o.Machine.Cluster, h.Cluster)
		case h.Versions.Max < n.self.Versions.Min || n.self.Versions.Max < h.Versions.Min:
			err = status.Errorf(codes.FailedPrecondition, "%s speaks the versions %d to %d of the protocol of clusters, and %.80q %d to %d: a version that both speak is missing, upgrade one release at a time",
				n.self.Name, n.self.Versions.Min, n.self.Versions.Max, h.Name, h.Versions.Min, h.Versions.Max)
		case h.From == n.self.Incarnation && n.leadsHere(h.To):
			err = anotherStart(n.self.Incarnation)
		case h.From == n.self.Incarnation:
			err = status.Errorf(codes.FailedPrecondition, "%s is reached at an address that is to be another member's: --cluster-advertise of both must differ", n.self.Name)
		case h.To != n.self.Incarnation:
			err = anotherStart(n.self.Incarnation)
		}
	}
	if err != nil && status.Code(err) != codes.NotFound && n.once.first(h.Name+err.Error()) {
		n.log.Warn("another process cannot be a member of this cluster", "name", fmt.Sprintf("%.80s", h.Name), "error", status.Convert(err).Message())
	}
	return h, err
}

func anotherStart(x cluster.Incarnation) error {
	return status.Errorf(codes.NotFound, "another start of a member is at this address: %s", x)
}

// leadsHere tells whether a member, for which this process called itself, had its name
// before.
func (n *Node) leadsHere(of cluster.Incarnation) (former bool) {
	n.step(func(now admission.Instant) { former = n.m.LeadsHere(now, of) })
	return former
}

// receive reads the envelopes of one peer, until it opens another stream.
func (n *Node) receive(stream grpc.ServerStream) error {
	h, err := n.admit(stream.Context())
	if err != nil {
		return err
	}
	n.mu.Lock()
	n.stream++
	this := n.stream
	n.streams[h.From] = this
	n.mu.Unlock()
	defer n.endStream(h.From, this)
	if err := stream.SendHeader(nil); err != nil {
		return err
	}
	var (
		r = codec.NewReader()
		e cluster.Envelope
		m rawmessage.Message
	)
	for {
		if err := stream.RecvMsg(&m); err != nil {
			return n.streamEnded(&h, err)
		}
		err := r.Read(m.Bytes(keptBuffer), &e)
		m.Free()
		if err == nil && e.From != h.From {
			err = fmt.Errorf("an envelope from %v on the stream of %v", e.From, h.From)
		}
		if err != nil {
			n.log.Error("a member of the cluster sends what cannot be read; its stream is ended", "name", fmt.Sprintf("%.80s", h.Name), "error", err)
			return status.Error(codes.InvalidArgument, err.Error())
		}
		newest, refused := n.deliver(&e, this)
		switch {
		case !newest:
			return status.Error(codes.Aborted, "another stream took the place of this one")
		case refused != "":
			// It may not be reached at the address that it says, so it is told here as well.
			return status.Error(codes.FailedPrecondition, refused)
		}
	}
}

// deliver hands an envelope to the machine, unless a newer stream of its sender is there.
// refused is why the sender may not be a member.
func (n *Node) deliver(e *cluster.Envelope, stream uint64) (newest bool, refused string) {
	n.step(func(now admission.Instant) {
		if newest = n.streams[e.From] == stream; newest {
			n.m.Receive(now, e)
			refused = n.m.Refused(e.From)
		}
	})
	return newest, refused
}

func (n *Node) endStream(from cluster.Incarnation, stream uint64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.streams[from] == stream {
		delete(n.streams, from)
	}
}

// streamEnded tells of messages that are too large; other ends are the peer's business.
func (n *Node) streamEnded(h *hello, err error) error {
	if status.Code(err) == codes.ResourceExhausted {
		n.log.Error("a member of the cluster sends what is too large; its stream is ended", "name", fmt.Sprintf("%.80s", h.Name), "error", status.Convert(err).Message())
	}
	if err == io.EOF {
		return nil
	}
	return err
}

// limitedListener bounds the connections that are open at once; others are closed.
type limitedListener struct {
	net.Listener
	open atomic.Int32
}

func limitConns(l net.Listener) net.Listener { return &limitedListener{Listener: l} }

// Accept is of net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if l.open.Add(1) <= maxConns {
			return &limitedConn{Conn: c, l: l}, nil
		}
		l.open.Add(-1)
		c.Close()
	}
}

type limitedConn struct {
	net.Conn
	l      *limitedListener
	closed atomic.Bool
}

// Close is of net.Conn.
func (c *limitedConn) Close() error {
	if !c.closed.Swap(true) {
		c.l.open.Add(-1)
	}
	return c.Conn.Close()
}
