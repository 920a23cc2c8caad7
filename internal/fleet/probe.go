package fleet

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/sluice-router/sluice/internal/upstream"
)

const (
	maxHealthBody = 64 << 10
	// maxFactsBody bounds an answer of an information route. SGLang's
	// /server_info has every argument and a state per data-parallel rank: some
	// 20 KB each.
	maxFactsBody = 8 << 20
)

// httpProber asks over the worker's own endpoint, so that TLS, key and base path
// are those of its requests.
type httpProber struct{ opts *HealthOptions }

func (p *httpProber) check(ctx context.Context, w *Worker, suspect bool) checkup {
	if suspect {
		// It is asked first for what costs it least: a worker that does not
		// answer at all need not be asked how it is.
		if alive, why := p.alive(ctx, w); alive != answerOK && alive != answerDenied {
			health := answerGone
			if alive == answerNone {
				health = answerNone
			}
			return checkup{health: health, alive: alive, why: why}
		}
	}
	health, noConn, why := p.health(ctx, w)
	c := checkup{health: health, why: why}
	switch {
	case health == answerOK, health == answerDenied, suspect:
		c.alive = answerOK
	case noConn:
		c.alive = answerGone // the other probe would fare no better
	case health == answerBusy, health == answerGone:
		var also string
		if c.alive, also = p.alive(ctx, w); c.alive == answerBusy || c.alive == answerGone {
			c.health = answerGone
			c.why += "; " + also
		}
	}
	return c
}

// health asks the health route. noConn tells that not even a connection came
// about.
func (p *httpProber) health(ctx context.Context, w *Worker) (a answer, noConn bool, why string) {
	path := p.opts.Endpoint
	status, err := p.get(ctx, w, path, false, nil)
	if err == nil && status == 404 && w.base.Path != "" {
		// An engine behind a base path may have its health route at the root.
		status, err = p.get(ctx, w, path, true, nil)
	}
	if err != nil {
		var e *upstream.Error
		noConn = errors.As(err, &e) && (e.Op == upstream.OpDial || e.Op == upstream.OpTLS)
		switch {
		case !upstream.EngineFault(err):
			return answerNone, false, err.Error()
		case e.Timeout() && !noConn && e.Limit != upstream.LimitDeadPeer:
			return answerBusy, false, err.Error()
		}
		return answerGone, noConn, err.Error()
	}
	switch {
	case status/100 == 2, status == 404, status == 405, status == 501:
		return answerOK, false, ""
	case status == 401, status == 403:
		return answerDenied, false, fmt.Sprintf("%s answers %d: the worker refuses the key", path, status)
	}
	return answerBusy, false, fmt.Sprintf("%s answers %d", path, status)
}

// alive asks a route that needs no scheduler, only the engine's front. Whether
// the route exists does not matter.
func (p *httpProber) alive(ctx context.Context, w *Worker) (answer, string) {
	status, err := p.get(ctx, w, "/model_info", false, nil)
	switch {
	case err != nil && !upstream.EngineFault(err):
		return answerNone, err.Error()
	case err != nil:
		return answerGone, err.Error()
	case status == 502, status == 503, status == 504: // something in front of it
		return answerBusy, fmt.Sprintf("/model_info answers %d", status)
	case status == 401, status == 403:
		return answerDenied, ""
	}
	return answerOK, ""
}

// get sends one request. The body goes to buf, or nowhere if that is nil.
func (p *httpProber) get(ctx context.Context, w *Worker, path string, atRoot bool, buf *[]byte) (status int, err error) {
	resp, err := w.endpoint.Do(ctx, &upstream.Request{
		Method: "GET", Path: path, AtRoot: atRoot,
		Header: upstream.Header{{Name: "Accept", Value: "*/*"}, {Name: "User-Agent", Value: "sluice-check"}},
		Limits: upstream.Limits{Total: p.opts.Timeout},
	})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	limit := maxHealthBody
	if buf != nil {
		limit = maxFactsBody
	}
	for n := 0; ; {
		piece, err := resp.Body.Next()
		if err == io.EOF {
			return resp.Status, nil
		}
		if err != nil {
			return 0, err
		}
		if n += len(piece); n > limit {
			if buf != nil {
				return 0, errBodyTooLarge
			}
			return resp.Status, nil // the status is all that was asked for
		}
		if buf != nil {
			*buf = append(*buf, piece...)
		}
	}
}

var errBodyTooLarge = fmt.Errorf("the answer is over %d bytes", maxFactsBody)

func (p *httpProber) facts(ctx context.Context, w *Worker) *Facts {
	f := &Facts{}
	p.ask(ctx, w, f, f.addModels, "/v1/models")
	p.ask(ctx, w, f, f.addServerInfo, "/server_info", "/get_server_info")
	p.ask(ctx, w, f, f.addModelInfo, "/model_info", "/get_model_info")
	return f
}

// ask reads the first of the paths that exists into f by means of take.
func (p *httpProber) ask(ctx context.Context, w *Worker, f *Facts, take func([]byte) error, paths ...string) {
	for _, path := range paths {
		var body []byte
		status, err := p.get(ctx, w, path, false, &body)
		switch {
		case err == errBodyTooLarge:
			f.warn("%s: %s", path, err)
		case err != nil:
			f.incomplete = true
			f.warn("%s: %s", path, err)
			return
		case status/100 == 2:
			if err := take(body); err == nil {
				return
			}
			f.warn("%s answers with something else than expected", path)
		case status == 401, status == 403:
			f.warn("%s answers %d: the worker refuses the key", path, status)
		case status >= 500 && status != 501:
			f.incomplete = true
			f.warn("%s answers %d", path, status)
			return
		}
	}
	f.Missing = append(f.Missing, paths[0])
}

const (
	loadsPath = "/v1/loads"
	// loadsTimeout bounds the wait for them. They are worth less than the check
	// that they come after.
	loadsTimeout = time.Second
)

func (p *httpProber) loads(ctx context.Context, w *Worker) (l *loads, never bool) {
	ctx, cancel := context.WithTimeout(ctx, loadsTimeout)
	defer cancel()
	var body []byte
	status, err := p.get(ctx, w, loadsPath+"?include=core", false, &body)
	switch {
	case err != nil:
		return nil, err == errBodyTooLarge
	case status/100 != 2:
		return nil, status < 500 && status != 429 || status == 501
	}
	l, err = readLoads(body)
	return l, err != nil
}
