package server

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"syscall"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/http1"
	"github.com/sluice-router/sluice/internal/nethttp"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/telemetry"
)

// keepAlive detects that a client's machine is gone while nothing is sent.
var keepAlive = net.KeepAliveConfig{Enable: true, Idle: 15 * time.Second, Interval: 15 * time.Second, Count: 4}

// listen opens a port. SO_REUSEADDR is set by package net, so that the next
// process can have the port at once.
func listen(ctx context.Context, what, addr, option string) (*net.TCPListener, error) {
	lc := net.ListenConfig{KeepAliveConfig: keepAlive}
	network := "tcp"
	if host, _, err := net.SplitHostPort(addr); err == nil && host == "0.0.0.0" {
		network = "tcp4" // with "tcp", package net takes it for all of IPv6 too
	}
	l, err := lc.Listen(ctx, network, addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("cannot listen on %s for %s: another process has that port; choose another with %s, or 0 for a free one: %w", addr, what, option, syscall.EADDRINUSE)
	case err != nil:
		return nil, fmt.Errorf("cannot listen on %s for %s: %w", addr, what, err)
	}
	return l.(*net.TCPListener), nil
}

// clientServer serves clients' connections, with the HTTP of --http-stack.
type clientServer interface {
	// Serve accepts until Shutdown, and then returns http.ErrServerClosed.
	Serve(l *net.TCPListener) error
	// Drain ends each connection with the request it carries, and those that carry none.
	Drain()
	// Shutdown closes the port, waits for the connections, and cuts them when ctx ends.
	Shutdown(ctx context.Context) error
	// CloseIdle closes up to n connections that wait for their client, and returns how
	// many. Leaving is how many of these have not ended yet.
	CloseIdle(n int) (closed int)
	Leaving() int64
}

// newClients is the server of clients' connections.
func (s *Server) newClients() clientServer {
	own := &http1.Server{
		Handler:        s,
		Refuse:         s.refuseBytes,
		Base:           s.base,
		HeaderTimeout:  s.cfg.Timeouts.ClientHeader,
		IdleTimeout:    s.cfg.Timeouts.ClientIdle,
		WriteTimeout:   writeLimit,
		MaxHeaderBytes: maxHeaderBytes,
		Accepted: func(c *net.TCPConn) {
			s.conns.Add(1)
			if s.cfg.Timeouts.ClientWrite > 0 {
				setUserTimeout(c, s.cfg.Timeouts.ClientWrite)
			}
		},
		Closed:  func(*net.TCPConn) { s.conns.Add(-1) },
		Crowded: s.filesShort,
		Full:    s.full,
		Evicted: func() { s.evicted.Add(1) },
		Reserve: func(n int) bool { return s.buffers.reserve(int64(n)) },
		Release: func(n int) { s.buffers.releaseHeap(int64(n)) },
		Report:  func(what string, err any) { s.log.Warn(what, "error", fmt.Sprint(err)) },
	}
	if s.cfg.Server.HTTPStack == config.HTTPStackNet {
		return nethttp.New(own)
	}
	return own
}

// refuseBytes answers bytes that cannot be parsed as an HTTP request.
func (s *Server) refuseBytes(w http.ResponseWriter, p *http1.Problem) {
	start := time.Now()
	id := requestID(nil)
	w.Header()[headerRequestID] = []string{id}
	if p.Unasked {
		// No request was sent: it is neither logged nor counted, since otherwise anybody
		// who connects could fill the log.
		e := tooManyFiles()
		e.Message = p.Message
		_ = e.WriteResponse(w, openai.ShapeOpenAI) // fails only if the client disconnected
		return
	}
	e := &openai.Error{Status: p.Status, Type: typeInvalidRequest, Code: headCode(p), Message: p.Message}
	if p.Status == http.StatusServiceUnavailable {
		e.Type, e.RetryAfter = typeServerError, tooManyRetryAfter
	}
	out := reply{ResponseWriter: w}
	_ = e.WriteResponse(&out, openai.ShapeOpenAI) // fails only if the client disconnected
	s.opts.Requests.Refused(openai.RouteOther, p.Status, e.Code)
	s.log.Access(&telemetry.AccessLine{
		ID: id, Method: "-", Route: "-", Level: slog.LevelInfo, Total: time.Since(start), Status: p.Status, Reason: e.Code, Err: e, BytesOut: out.bytes,
	})
}

// headCode is the code of an error about a request's head.
func headCode(p *http1.Problem) string {
	switch p.Status {
	case http.StatusServiceUnavailable:
		if p.Connections {
			return codeTooManyFiles
		}
		return reasonBufferFull
	case http.StatusRequestTimeout:
		return codeBodyTimeout
	case http.StatusExpectationFailed:
		return "expectation_failed"
	case http.StatusRequestHeaderFieldsTooLarge:
		return "request_head_too_large"
	case http.StatusNotImplemented:
		return "unsupported_transfer_coding"
	case http.StatusHTTPVersionNotSupported:
		return "unsupported_http_version"
	}
	return "malformed_request"
}
