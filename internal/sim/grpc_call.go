package sim

import (
	"context"
	"errors"
	"net/http"
	"net/textproto"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	grpcpeer "google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

// call is one gRPC call with its log entry and its fault.
type call struct {
	// Immutable.
	w      *Worker
	l      *lifetime
	client context.Context // the stream's own
	ctx    context.Context // ends with client or with the process, with its cause
	rec    *Request
	fault  *Fault // never nil
	send   func(proto.Message) error

	// Owned by who holds the lock of the answer.
	sent int
}

// call runs one call of a method: it logs it, checks the key, applies the fault, and turns
// the error of run into a status. Calls that do not run the engine are probes.
func (w *Worker) call(client context.Context, l *lifetime, method string, req proto.Message, generation bool,
	send func(proto.Message) error, run func(*call) error) error {
	if !l.enter() {
		<-client.Done()
		return status.FromContextError(client.Err()).Err()
	}
	defer l.handlers.Done()
	ctx, cancel := context.WithCancelCause(client)
	defer cancel(nil)
	stop := context.AfterFunc(l.ctx, func() { cancel(context.Cause(l.ctx)) })
	defer stop()
	c := &call{w: w, l: l, client: client, ctx: ctx, rec: w.entryOf(client, method, req), fault: noFault, send: send}
	w.enter(c.rec, !generation)
	if keep := w.opt.LogBodyBytes; generation && keep > 0 && w.opt.LogRequests > 0 {
		if body, err := proto.Marshal(req); err == nil {
			w.note(func() { c.rec.BodySize = len(body); w.log.keep(c.rec, body[:min(len(body), keep)]) })
		}
	}
	if f := w.faultFor(method, generation); f != nil {
		c.fault = f
	}
	err := c.run(run)
	how := Complete
	switch {
	case errors.Is(err, errBroken):
		how = Faulted
		if err = nil; c.fault.Do != End {
			err = status.Error(codes.Unavailable, "broken by a fault")
		}
	case err == nil:
	case errors.Is(err, errKilled) || l.ctx.Err() != nil:
		how = Killed
		<-client.Done() // the connections are reset, nothing is answered
	case client.Err() != nil:
		how = ClientGone
		err = status.FromContextError(client.Err()).Err()
	default:
		err = grpcError(err)
	}
	code := status.Code(err)
	w.note(func() {
		c.rec.Code, c.rec.Status = code.String(), httpStatus(code)
		if err != nil && c.rec.Error == "" {
			c.rec.Error = status.Convert(err).Message()
		}
	})
	w.finish(c.rec, !generation, how)
	return err
}

func (c *call) run(run func(*call) error) error {
	w := c.w
	if s := c.rec.Header.Get("X-Sim-Fault"); s != "" {
		f, err := ParseFault(s)
		if err != nil {
			return invalidf("X-Sim-Fault", "%v", err)
		}
		if f.On == "" || f.On == w.role {
			c.fault = &f
		}
	}
	if c.fault != noFault {
		w.note(func() { c.rec.Fault = c.fault.String() })
	}
	if key := w.opt.APIKey; key != "" && c.rec.Header.Get("Authorization") != "Bearer "+key {
		return status.Error(codes.Unauthenticated, "Unauthorized")
	}
	for _, p := range []Point{AtRequest, AtBody} {
		if err := c.applyFault(p); err != nil {
			return err
		}
	}
	if err := w.sleep(c.ctx, c.fault.Delay); err != nil {
		return err
	}
	if code := c.fault.grpcCode(); code != codes.OK {
		text := c.fault.Body
		if text == "" {
			text = "simulated status " + code.String()
		}
		if c.fault.BodySize > 0 {
			text = string(sized([]byte(text), c.fault.BodySize))
		}
		return status.Error(code, text)
	}
	return run(c)
}

// entryOf begins a log entry.
func (w *Worker) entryOf(ctx context.Context, method string, _ proto.Message) *Request {
	now := time.Now()
	e := &Request{Worker: w.id, Method: http.MethodPost, Path: method, Proto: "gRPC", Header: make(http.Header),
		Arrived: now, BodyRead: now, Port: -1, Rank: -1, PrefillRank: -1}
	if p, ok := grpcpeer.FromContext(ctx); ok {
		e.RemoteAddr = p.Addr.String()
	}
	md, _ := metadata.FromIncomingContext(ctx)
	for k, v := range md {
		if name, pseudo := strings.CutPrefix(k, ":"); pseudo {
			if name == "authority" {
				e.Header["Host"] = v
			}
			continue
		}
		e.Header[textproto.CanonicalMIMEHeaderKey(k)] = v
	}
	return e
}

// message sends a message of the answer, with the fault's waits and its action.
func (c *call) message(m proto.Message) error {
	f := c.fault
	if c.sent == 0 {
		if f.does(AtHeaders) || f.does(AtEvent) && f.After == 0 {
			if err := c.act(); err != nil {
				return err
			}
		}
		if err := c.w.sleep(c.ctx, f.FirstByte); err != nil {
			return err
		}
	} else if err := c.w.sleep(c.ctx, f.EventDelay); err != nil {
		return err
	}
	if err := c.w.thawed(c.ctx); err != nil {
		return err
	}
	if err := c.send(m); err != nil {
		return err
	}
	c.sent++
	first := c.sent == 1
	c.w.note(func() {
		c.rec.Events++
		if first {
			now := time.Now()
			c.rec.HeadersSent, c.rec.FirstByte = now, now
		}
	})
	if (f.does(AtEvent) || f.does(AtInside)) && f.After > 0 && c.sent == f.After {
		return c.act()
	}
	return nil
}

func (c *call) applyFault(p Point) error {
	if !c.fault.does(p) {
		return nil
	}
	return c.act()
}

// act does the fault's action. After GoAway the call goes on.
func (c *call) act() error {
	switch c.fault.Do {
	case Freeze:
		<-c.ctx.Done()
		return context.Cause(c.ctx)
	case GoAway:
		c.w.GoAway()
		return nil
	case Die:
		c.w.crash(c.l)
		return errEngineDead
	case Reset, Close:
		if conn := c.conn(); conn != nil {
			if c.fault.Do == Reset {
				conn.reset()
			} else {
				_ = conn.Close()
			}
		}
	}
	return errBroken
}

// conn is the connection that the call came on, nil if it has ended.
func (c *call) conn() *conn {
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	for x := range c.l.conns {
		if x.RemoteAddr().String() == c.rec.RemoteAddr {
			return x
		}
	}
	return nil
}

// grpcError is the status of an error of the engine.
func grpcError(err error) error {
	if _, ok := status.FromError(err); ok {
		return err
	}
	var wire *wireError
	if !errors.As(err, &wire) {
		return status.Error(codes.Internal, err.Error())
	}
	return status.Error(codeOf(wire.status), wire.message)
}

// grpcStatus are the HTTP statuses that are nearest to the codes.
var grpcStatus = map[codes.Code]int{codes.OK: 200, codes.InvalidArgument: 400, codes.Unauthenticated: 401, codes.PermissionDenied: 403,
	codes.NotFound: 404, codes.AlreadyExists: 409, codes.ResourceExhausted: 429, codes.Canceled: 499, codes.Internal: 500,
	codes.Unimplemented: 501, codes.Unavailable: 503, codes.DeadlineExceeded: 504}

func httpStatus(code codes.Code) int {
	if s, ok := grpcStatus[code]; ok {
		return s
	}
	return 500
}

// codeOf is the code that is nearest to an HTTP status.
func codeOf(httpStatus int) codes.Code {
	for code, s := range grpcStatus {
		if s == httpStatus {
			return code
		}
	}
	switch {
	case httpStatus < 400:
		return codes.OK
	case httpStatus == 408:
		return codes.DeadlineExceeded
	case httpStatus == 502:
		return codes.Unavailable
	case httpStatus < 500:
		return codes.InvalidArgument
	}
	return codes.Internal
}
