package fleet

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/upstream"
	"github.com/sluice-router/sluice/internal/workerurl"
)

const (
	maxHealthBody = 64 << 10
	// maxFactsBody bounds an answer of an information route. SGLang's
	// /server_info has every argument and a state per data-parallel rank: some
	// 20 KB each.
	maxFactsBody = 8 << 20
	// maxProbeBody bounds the answer of a probe for the connector, maxQueryBody that
	// of a bootstrap server: an address for each process of the engine.
	maxProbeBody = 256 << 10
	maxQueryBody = 1 << 20
)

// httpProber sends probes over the worker's own endpoint, so that TLS, key and base
// path are those of its requests.
type httpProber struct{ cfg *config.Health }

func (p *httpProber) check(ctx context.Context, w *Worker, l checkParams) checkResult {
	health := func(ctx context.Context) probeResult { return p.health(ctx, w) }
	alive := func(ctx context.Context) probeResult { return p.alive(ctx, w) }
	if l.inService {
		return probeInParallel(ctx, p.cfg, l, health, alive)
	}
	if l.failing {
		// The liveness probe comes first, since it costs the engine least: a worker
		// that does not answer it need not be asked for its health.
		if r := alive(ctx); r.outcome != outcomeOK && r.outcome != outcomeDenied {
			health := outcomeUnreachable
			if r.outcome == outcomeUnknown {
				health = outcomeUnknown
			}
			return checkResult{health: health, alive: r.outcome, reason: r.reason, misconfigured: r.misconfigured}
		}
	}
	h := health(ctx)
	c := checkResult{health: h.outcome, reason: h.reason, misconfigured: h.misconfigured}
	switch {
	case h.outcome == outcomeOK, h.outcome == outcomeDenied, l.failing:
		c.alive = outcomeOK
	case h.noConnection:
		c.alive = outcomeUnreachable // the other probe would fare no better
	case h.outcome == outcomeBusy, h.outcome == outcomeUnreachable:
		r := alive(ctx)
		if c.alive = r.outcome; c.alive == outcomeBusy || c.alive == outcomeUnreachable {
			c.health = outcomeUnreachable
			c.reason = joinReasons(c.reason, r.reason)
		}
	}
	return c
}

// health asks the health route.
func (p *httpProber) health(ctx context.Context, w *Worker) probeResult {
	d := w.Dialect()
	path := d.HealthPath(p.cfg.Endpoint)
	status, ill, err := p.getHealth(ctx, w, d, path, false)
	if err == nil && status == 404 && w.base.Path != "" {
		// An engine behind a base path may have its health route at the root.
		status, ill, err = p.getHealth(ctx, w, d, path, true)
	}
	if err != nil {
		var e *upstream.Error
		noConn := errors.As(err, &e) && (e.Op == upstream.OpDial || e.Op == upstream.OpTLS)
		switch {
		case !upstream.EngineFault(err):
			return probeResult{outcome: outcomeUnknown, reason: err.Error()}
		case e.Timeout() && !noConn && e.Limit != upstream.LimitDeadPeer:
			return probeResult{outcome: outcomeBusy, timedOut: true, reason: err.Error()}
		}
		return probeResult{outcome: outcomeUnreachable, noConnection: noConn, reason: err.Error(), misconfigured: trouble(err, w.base)}
	}
	switch {
	case ill != nil:
		return probeResult{outcome: outcomeBusy, reason: fmt.Sprintf("%s: %s", path, ill)}
	case status/100 == 2, status == 404, status == 405, status == 501:
		return probeResult{outcome: outcomeOK}
	case status == 401, status == 403:
		why := fmt.Sprintf("%s answers %d: the worker refuses the key", path, status)
		return probeResult{outcome: outcomeDenied, reason: why, misconfigured: why + "; set its api_key"}
	}
	return probeResult{outcome: outcomeBusy, reason: fmt.Sprintf("%s answers %d", path, status)}
}

// alive asks a route that needs no scheduler, only the engine's front. Whether
// the route exists does not matter.
func (p *httpProber) alive(ctx context.Context, w *Worker) probeResult {
	d := w.Dialect()
	path := d.AlivePath()
	status, ill, err := p.getHealth(ctx, w, d, path, false)
	switch {
	case err != nil && !upstream.EngineFault(err):
		return probeResult{outcome: outcomeUnknown, reason: err.Error()}
	case err != nil:
		var e *upstream.Error
		return probeResult{outcome: outcomeUnreachable, timedOut: errors.As(err, &e) && e.Timeout(), reason: err.Error(), misconfigured: trouble(err, w.base)}
	case ill != nil:
		return probeResult{outcome: outcomeBusy, reason: fmt.Sprintf("%s: %s", path, ill)}
	case behindAProxy(status):
		return probeResult{outcome: outcomeBusy, reason: fmt.Sprintf("%s answers %d", path, status)}
	case status == 401, status == 403:
		return probeResult{outcome: outcomeDenied}
	}
	return probeResult{outcome: outcomeOK}
}

// behindAProxy tells whether a status is that of something in front of an engine that does
// not answer.
func behindAProxy(status int) bool { return status == 502 || status == 503 || status == 504 }

var probeHeader = upstream.Header{{Name: "Accept", Value: "*/*"}, {Name: "User-Agent", Value: "sluice-check"}}

// probeTimeout bounds the question for the connector: an idle engine answers
// in under a second, its first request may take several.
const probeTimeout = 10 * time.Second

// asker sends the questions of dialects to w.
func (p *httpProber) asker(w *Worker) engine.Ask {
	return func(ctx context.Context, q engine.Question) (status int, body []byte, err error) {
		switch {
		case q.AtBootstrap:
			return p.askBootstrap(ctx, w, q)
		case q.Method == "" || q.Method == http.MethodGet:
			status, err = p.get(ctx, w, q.Path, false, &body)
			return status, body, err
		}
		header := append(slices.Clone(probeHeader), upstream.Field{Name: "Content-Type", Value: "application/json"})
		return p.send(ctx, w.endpoint, &upstream.Request{
			Method: q.Method, Path: q.Path, Header: header, Body: [][]byte{q.Body}, Limits: upstream.Limits{Total: probeTimeout},
		}, maxProbeBody)
	}
}

// askBootstrap sends a question to the bootstrap server of w, over a connection of its
// own and without the worker's key.
func (p *httpProber) askBootstrap(ctx context.Context, w *Worker, q engine.Question) (status int, body []byte, err error) {
	ep, err := upstream.NewEndpoint(upstream.Config{URL: w.bootstrapAddr(), MaxIdleConns: -1})
	if err != nil {
		return 0, nil, err
	}
	defer ep.Close()
	return p.send(ctx, ep, &upstream.Request{Method: http.MethodGet, Path: q.Path, Header: probeHeader, Limits: upstream.Limits{Total: p.cfg.Timeout}}, maxQueryBody)
}

// get sends one request. The body goes to buf, or nowhere if that is nil.
func (p *httpProber) get(ctx context.Context, w *Worker, path string, atRoot bool, buf *[]byte) (status int, err error) {
	r := &upstream.Request{Method: "GET", Path: path, AtRoot: atRoot, Header: probeHeader, Limits: upstream.Limits{Total: p.cfg.Timeout}}
	if buf != nil {
		status, *buf, err = p.send(ctx, w.endpoint, r, maxFactsBody)
		return status, err
	}
	status, _, err = p.send(ctx, w.endpoint, r, -maxHealthBody)
	return status, err
}

// getHealth sends one request to a route that tells how the engine is. ill is what its answer
// says against it, other than by the status.
func (p *httpProber) getHealth(ctx context.Context, w *Worker, d engine.Dialect, path string, atRoot bool) (status int, ill, err error) {
	if d.Speaks("http") { // the status says it all
		status, err = p.get(ctx, w, path, atRoot, nil)
		return status, nil, err
	}
	var body []byte
	if status, err = p.get(ctx, w, path, atRoot, &body); err == nil && status/100 == 2 {
		ill = d.ReadHealth(path, body)
	}
	return status, ill, err
}

// send sends one request and reads the answer, up to limit bytes of it. A negative
// limit reads so much and keeps nothing: the status is all that is asked for.
func (p *httpProber) send(ctx context.Context, ep *upstream.Endpoint, r *upstream.Request, limit int) (status int, body []byte, err error) {
	resp, err := ep.Do(ctx, r)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	for n := 0; ; {
		piece, err := resp.Body.Next()
		if err == io.EOF {
			return resp.Status, body, nil
		}
		if err != nil {
			return 0, nil, err
		}
		switch n += len(piece); {
		case limit < 0 && n > -limit:
			return resp.Status, nil, nil
		case limit >= 0 && n > limit:
			return 0, nil, &engine.TooLargeError{Limit: limit}
		case limit >= 0:
			body = append(body, piece...)
		}
	}
}

func tooLarge(err error) bool {
	var e *engine.TooLargeError
	return errors.As(err, &e)
}

// trouble says what is wrong with a worker's registration, if that is why a request
// failed.
func trouble(err error, url workerurl.URL) string {
	var (
		e      *upstream.Error
		other  *upstream.ProtocolError
		record tls.RecordHeaderError
	)
	switch {
	case !errors.As(err, &e) || e.Timeout() || !upstream.EngineFault(err):
		return ""
	case errors.As(err, &other):
		if scheme := schemeFor(other.Speaks, url); scheme != "" {
			return fmt.Sprintf("%s; if it is an engine, its URL begins with %s://", err, scheme)
		}
	case errors.As(err, &record):
		return fmt.Sprintf("%s; it does not speak TLS, for which its URL asks: without TLS it begins with %s://", err, strings.TrimSuffix(url.Scheme, "s"))
	case e.Op == upstream.OpTLS:
		return err.Error() + "; its URL asks for TLS: check its certificate and the tls settings for it"
	}
	return ""
}

// schemeFor is the scheme that a URL should have where a protocol was heard at its address,
// "" if that is not to be told.
func schemeFor(heard upstream.Protocol, url workerurl.URL) string {
	s := ""
	if url.Secure() {
		s = "s"
	}
	switch heard {
	case upstream.ProtocolHTTP1:
		return "http" + s
	case upstream.ProtocolHTTP2:
		return "grpc" + s
	case upstream.ProtocolTLS:
		return strings.TrimSuffix(url.Scheme, "s") + "s"
	}
	return ""
}

// joinReasons is both reasons, or the one if they are the same.
func joinReasons(a, b string) string {
	if a == b {
		return a
	}
	return a + "; " + b
}
