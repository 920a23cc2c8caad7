// Package etcd keeps the record of a cluster in etcd.
//
// The record is one key, /sluice/NAME/gate. Its value is a line "sluice-gate REVISION" and
// what the members have written. A transaction compares that line and writes: etcd's own
// revisions are not used, since a restored etcd gives the same ones again. Reads are
// linearizable: a member of etcd that is cut off from its leader answers none.
//
// Several endpoints are tried one after another, each for a part of the time that there
// is, beginning with the one that served last. The library would hand requests to all in
// turn, also to one that is frozen.
package etcd

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sluice-router/sluice/internal/cluster/store"
)

// Store implements store.Store.
type Store struct {
	url   store.URL
	key   string
	calls *store.Calls

	// Of the call that runs.
	clients []*clientv3.Client // for each endpoint; nil without a connection
	first   int                // the endpoint that is tried first
}

var _ store.Store = (*Store)(nil)

// New returns the store for the cluster of that name. No endpoint is asked yet.
func New(u store.URL, name string) (*Store, error) {
	if u.Kind != store.Etcd || len(u.Hosts) == 0 {
		return nil, fmt.Errorf("%s is no etcd", u)
	}
	if err := store.CheckName(name); err != nil {
		return nil, err
	}
	return &Store{
		url: u, key: "/sluice/" + name + "/gate", calls: store.NewCalls(), clients: make([]*clientv3.Client, len(u.Hosts)),
	}, nil
}

// head is how a value begins; the revision and the end of the line follow.
const head = "sluice-gate "

// parse takes a value apart.
func parse(value []byte) (store.Record, error) {
	line, rest, ok := bytes.Cut(value, []byte("\n"))
	revision, ok2 := strings.CutPrefix(string(line[:min(len(line), 100)]), head)
	if !ok || !ok2 || !store.IsRevision(revision) || len(rest) > store.MaxValue {
		return store.Record{}, fmt.Errorf("%w: %d bytes that begin with %.40q", store.ErrForeign, len(value), value[:min(len(value), 40)])
	}
	return store.Record{Revision: revision, Value: bytes.Clone(rest)}, nil
}

// Read implements store.Store.
func (s *Store) Read(ctx context.Context) (r store.Record, err error) {
	err = s.calls.Do(ctx, func(ctx context.Context) error {
		return s.try(ctx, func(ctx context.Context, c *clientv3.Client, _ bool) error {
			answer, err := c.Get(clientv3.WithRequireLeader(ctx), s.key)
			if err != nil {
				return err
			}
			r = store.Record{}
			if len(answer.Kvs) > 0 {
				r, err = parse(answer.Kvs[0].Value)
			}
			return err
		})
	})
	return r, err
}

// Write implements store.Store.
func (s *Store) Write(ctx context.Context, value []byte, revision string) (newRevision string, err error) {
	if err := store.CheckWrite(value, revision); err != nil {
		return "", err
	}
	newRevision = store.NewRevision()
	put := clientv3.OpPut(s.key, head+newRevision+"\n"+string(value))
	unchanged := []clientv3.Cmp{clientv3.Compare(clientv3.CreateRevision(s.key), "=", 0)}
	if revision != "" {
		// The value lies between the line without its end and the same with a greater
		// one: it begins with the line.
		unchanged = []clientv3.Cmp{
			clientv3.Compare(clientv3.Value(s.key), ">", head+revision),
			clientv3.Compare(clientv3.Value(s.key), "<", head+revision+"\x0b"),
		}
	}
	err = s.calls.Do(ctx, func(ctx context.Context) error {
		return s.try(ctx, func(ctx context.Context, c *clientv3.Client, again bool) error {
			answer, err := c.Txn(clientv3.WithRequireLeader(ctx)).If(unchanged...).Then(put).Else(clientv3.OpGet(s.key)).Commit()
			switch {
			case err != nil:
				return err
			case answer.Succeeded:
				return nil
			}
			now := store.Record{}
			for _, r := range answer.Responses {
				if kvs := r.GetResponseRange().GetKvs(); len(kvs) > 0 {
					if now, err = parse(kvs[0].Value); err != nil {
						return err
					}
				}
			}
			switch {
			case again && now.Revision == newRevision:
				return nil // by an earlier try, whose answer was lost
			case again:
				return store.Unavailable(errors.New("a lost answer, and meanwhile the record was changed"))
			}
			return store.ErrConflict
		})
	})
	if err != nil {
		return "", err
	}
	return newRevision, nil
}

// try calls f with one endpoint after another until one answers. again says that an
// earlier call of f may have had its effect.
func (s *Store) try(ctx context.Context, f func(_ context.Context, _ *clientv3.Client, again bool) error) error {
	var failed []string
	again := false
	for i := range s.clients {
		err := s.tryOne(ctx, s.first, len(s.clients)-i, again, f)
		unavailable := errors.Is(err, store.ErrUnavailable)
		if !unavailable && !errors.Is(err, store.ErrRefused) {
			return err
		}
		again = again || unavailable
		host := s.url.Hosts[s.first]
		s.first = (s.first + 1) % len(s.clients)
		if ctx.Err() != nil {
			failed = append(failed, host)
			break
		}
		failed = append(failed, host+": "+plain(err))
	}
	err := errors.New(strings.Join(failed, "; "))
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w (%w)", store.Ended(ctx), err)
	case again:
		return store.Unavailable(err)
	}
	return store.Refused(err)
}

// plain is an error without the words that are in front of all of its kind, here and in
// gRPC.
func plain(err error) string {
	text := err.Error()
	for _, kind := range []error{store.ErrUnavailable, store.ErrRefused} {
		text = strings.TrimPrefix(text, kind.Error()+": ")
	}
	if strings.HasPrefix(text, "rpc error: ") {
		_, text, _ = strings.Cut(text, "desc = ")
	}
	return text
}

// tryOne calls f with one endpoint, for half the time that there is if others are left.
// A connection that failed is dropped, and replaced once.
func (s *Store) tryOne(ctx context.Context, n, left int, again bool, f func(context.Context, *clientv3.Client, bool) error) (err error) {
	if left > 1 {
		end, _ := ctx.Deadline() // that of store.Calls
		var cancel context.CancelFunc
		part := time.Until(end) / 2
		ctx, cancel = context.WithTimeoutCause(ctx, part, fmt.Errorf("no answer within %s", part.Round(time.Millisecond)))
		defer cancel()
	}
	defer func() {
		if err = classify(ctx, err); errors.Is(err, errToken) {
			err = store.Refused(err)
		}
		if errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrRefused) {
			s.drop(n)
		}
	}()
	if s.clients[n] != nil {
		err = classify(ctx, f(ctx, s.clients[n], again))
		unavailable := errors.Is(err, store.ErrUnavailable)
		if ctx.Err() != nil || !unavailable && !errors.Is(err, errToken) {
			return err
		}
		// The connection may be one to a server that was restarted since. etcd forgets
		// tokens then, and does nothing for one that it does not know.
		again = again || unavailable
		s.drop(n)
	}
	if s.clients[n], err = s.connect(ctx, s.url.Hosts[n]); err != nil {
		return err
	}
	return f(ctx, s.clients[n], again)
}

// connect makes a client of one endpoint. With a user it asks for a token.
func (s *Store) connect(ctx context.Context, host string) (*clientv3.Client, error) {
	user, password, err := s.url.Credentials()
	if err != nil {
		return nil, err
	}
	config, err := s.url.TLSConfig()
	if err != nil {
		return nil, err
	}
	// The endpoint's host is what its certificate is compared with.
	endpoint := "http://" + host
	if config != nil {
		endpoint = "https://" + host
		if _, port, _ := net.SplitHostPort(host); s.url.ServerName != "" {
			endpoint = "https://" + net.JoinHostPort(s.url.ServerName, port)
		}
	}
	dial := func(ctx context.Context, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "tcp", host)
	}
	// The client's own context is for its life, not for the call that makes it.
	life, end := context.WithCancel(context.Background())
	stop := context.AfterFunc(ctx, end)
	c, err := clientv3.New(clientv3.Config{
		Context: life, Endpoints: []string{endpoint}, TLS: config, Username: user, Password: password,
		DialTimeout: store.CallLimit, MaxUnaryRetries: 2, Logger: zap.NewNop(),
		MaxCallSendMsgSize: maxMessage, MaxCallRecvMsgSize: maxMessage,
		DialOptions: []grpc.DialOption{grpc.WithContextDialer(dial), grpc.WithChainUnaryInterceptor(intercept)},
	})
	if !stop() && err == nil {
		c.Close()
		err = ctx.Err()
	}
	if err != nil {
		end()
		return nil, err
	}
	return c, nil
}

// maxMessage bounds what is sent to etcd and read from it in one message. etcd takes up to
// 1.5 MiB unless told otherwise, so that what lies under the key is read, and refused here.
const maxMessage = 2 << 20

// errToken: etcd does not know the token, or has other users than when it gave it.
var errToken = status.Error(codes.Aborted, "etcd does not accept the token that it gave")

// intercept stands between the library and the connection. A call fails when the endpoint
// refuses the connection, where the library would wait for one that is made. A token that
// is not known is not for the library: it would ask for another one with the old one in
// the request, which etcd 3.4 refuses, again and again.
func intercept(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
	err := invoke(ctx, method, req, reply, cc, append(opts, grpc.WaitForReady(false))...)
	if known := rpctypes.Error(err); errors.Is(known, rpctypes.ErrInvalidAuthToken) || errors.Is(known, rpctypes.ErrAuthOldRevision) {
		return errToken
	}
	return err
}

func (s *Store) drop(n int) {
	if s.clients[n] != nil {
		s.clients[n].Close()
		s.clients[n] = nil
	}
}

// Close implements store.Store.
func (s *Store) Close() error {
	s.calls.Close(func() {
		for n := range s.clients {
			s.drop(n)
		}
	})
	return nil
}

// String implements store.Store.
func (s *Store) String() string { return s.url.String() + " " + s.key }

// refusals are the errors of etcd after which trying again does not help by itself.
var refusals = []error{
	rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrUserEmpty, rpctypes.ErrUserNotFound,
	rpctypes.ErrAuthNotEnabled, rpctypes.ErrRequestTooLarge, rpctypes.ErrInvalidAuthMgmt,
}

// classify makes one of the package store's errors of any other.
func classify(ctx context.Context, err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errToken), errors.Is(err, store.ErrConflict), errors.Is(err, store.ErrForeign), errors.Is(err, store.ErrRefused), errors.Is(err, store.ErrUnavailable):
		return err
	case ctx.Err() != nil:
		return store.Ended(ctx)
	}
	for _, r := range refusals {
		if errors.Is(err, r) {
			return store.Refused(err)
		}
	}
	switch code := status.Code(err); {
	case code == codes.ResourceExhausted && strings.Contains(err.Error(), "received message larger"):
		return fmt.Errorf("%w: it is larger than %d bytes", store.ErrForeign, maxMessage)
	case code == codes.PermissionDenied, code == codes.Unauthenticated, code == codes.Unimplemented, store.IsTLSRefusal(err):
		return store.Refused(err)
	}
	return store.Unavailable(err)
}
