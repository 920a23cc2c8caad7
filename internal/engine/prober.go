package engine

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"

	"github.com/sluice-router/sluice/internal/kv/events"
	"github.com/sluice-router/sluice/internal/upstream"
)

// Prober is how the workers of a dialect are probed and what their answers mean. The
// caller decides when to ask, how long to wait and how much to read; a Prober opens no
// connection by itself.
type Prober interface {
	// Owns tells whether a model with this owned_by in /v1/models proves that the
	// engine is of the dialect.
	Owns(ownedBy string) bool
	// SignPath is a route whose answer proves the dialect (see Recognizes), to be
	// asked of engines that nothing else proves to be of any; empty for none.
	SignPath() string
	// Recognizes tells whether the engine's answer to GET path proves the dialect.
	Recognizes(path string, answer Fields) bool

	// ListsModels tells whether engines of the dialect list their models at /v1/models.
	ListsModels() bool
	// ReadFacts asks for what an engine of the dialect tells of itself beside its
	// list of models and its load.
	ReadFacts(q *Inquiry)
	// Changed asks, by a few cheap requests, whether the engine is another process
	// than before, or serves other models. A route that does not answer proves
	// nothing.
	Changed(ctx context.Context, ask Ask, before *Facts) bool
	// HealthPath is the route that tells whether the engine is well; set is the one that
	// the operator names for engines that speak HTTP.
	HealthPath(set string) string
	// AlivePath is a route that needs no scheduler, only the engine's front. Whether
	// the engine has it does not matter.
	AlivePath() string
	// ReadHealth reads an answer with status 200 of HealthPath or AlivePath. The error is why
	// the engine is not well although its front answers, as with status 503.
	ReadHealth(path string, answer []byte) error
	// SchedulerPath is a route that only a running scheduler can answer with a status
	// of 2xx, however busy it is; empty for none. An engine whose scheduler is idle may
	// take a second for it.
	SchedulerPath() string
	// SchedulerQuestions are the smallest pieces of work for the scheduler of an engine
	// that serves the model, of which the next is asked where one is refused; nil for
	// none. Only an answer of status 200 proves that the scheduler runs: another may be of
	// the engine's front alone.
	SchedulerQuestions(model string) []Question

	// KVEventsPath is the route by which an engine with these facts says where it publishes
	// the events of its KV cache; empty for none. ReadKVEvents reads its answer for the
	// worker at a host; the error is events.ErrNoSources if it publishes none.
	KVEventsPath(f *Facts) string
	ReadKVEvents(host string, answer []byte) ([]events.Source, error)
	// PushesKVEvents tells whether engines of the dialect push those events over the worker's
	// own connections, by SubscribeKVEvents; then KVEventsPath is not asked. The subscription
	// ends with ctx.
	PushesKVEvents() bool
	SubscribeKVEvents(ctx context.Context, to *upstream.Endpoint) (events.Subscription, error)

	// LoadsPath is the route with the engine's load, empty for none; ReadLoads reads
	// its answer.
	LoadsPath() string
	ReadLoads(answer []byte) (*Loads, error)
	// LoadsIdentify tells whether the load is worth asking for even of a worker
	// without requests, because Loads.Started tells one process from the next.
	LoadsIdentify() bool

	// RefusesUnlisted tells whether the engine refuses requests that name a model
	// which its /v1/models does not list.
	RefusesUnlisted() bool
}

// Question is one request to a worker.
type Question struct {
	Method string // empty: GET
	Path   string
	// Body is sent as JSON; by gRPC it is the encoded message, and Method means nothing.
	Body []byte
	// AtBootstrap asks the bootstrap server of the worker instead of the worker itself,
	// by plain HTTP and without its key.
	AtBootstrap bool
}

// Ask sends a question and returns the status and the body of the answer. Limits in
// time and size are those of the caller; an answer that is larger is a *TooLargeError.
type Ask func(ctx context.Context, q Question) (status int, body []byte, err error)

// TooLargeError is returned for an answer of more than Limit bytes.
type TooLargeError struct{ Limit int }

func (e *TooLargeError) Error() string { return fmt.Sprintf("the answer is over %d bytes", e.Limit) }

// Inquiry reads what one worker tells of itself into Facts.
type Inquiry struct {
	Facts *Facts

	ctx      context.Context
	ask      Ask
	registry *Registry
	set      Dialect // by the operator; nil: to be found out
}

// Read reads the first of the paths that exists by means of take, and returns which
// one that was; empty for none. lost: an answer was lost that may come another time.
// What is wrong with the answers is noted in Facts.
func (q *Inquiry) Read(take func(answer []byte) error, paths ...string) (path string, lost bool) {
	f := q.Facts
	for _, path := range paths {
		status, body, err := q.ask(q.ctx, Question{Path: path})
		var large *TooLargeError
		switch {
		case errors.As(err, &large):
			f.Warn("%s: %s", path, err)
		case err != nil:
			f.Incomplete = true
			f.Warn("%s: %s", path, err)
			return "", true
		case status/100 == 2:
			f.Answered = true
			q.recognize(path, body)
			if err := take(body); err == nil {
				return path, false
			}
			f.Warn("%s has an unexpected answer", path)
		case status == http.StatusUnauthorized, status == http.StatusForbidden:
			f.Answered = true
			f.Warn("%s answers %d: the worker refuses the key; set its api_key", path, status)
		case status >= 500 && status != http.StatusNotImplemented:
			f.Incomplete = true
			f.Warn("%s answers %d", path, status)
			return "", true
		case status != http.StatusNotFound:
			f.Answered = true
		}
	}
	f.Missing = append(f.Missing, paths[0])
	return "", false
}

// TryRead is Read of a route that few engines of the dialect have: that it is missing,
// or answers with something else, is not noted.
func (q *Inquiry) TryRead(take func(answer []byte) error, path string) {
	missing, warnings := q.Facts.Missing, q.Facts.Warnings
	q.Read(take, path)
	q.Facts.Missing, q.Facts.Warnings = missing, warnings
}

// Elsewhere tells whether the answers have proved meanwhile that the engine is of
// another dialect than d, which then has no more to ask.
func (q *Inquiry) Elsewhere(d Dialect) bool {
	return q.set == nil && q.Facts.Backend != "" && q.Facts.Backend != d.Name()
}

// recognize takes over which dialect an answer proves, if any.
func (q *Inquiry) recognize(path string, body []byte) {
	if path == modelsPath {
		return // by owned_by
	}
	var answer Fields
	if json.Unmarshal(body, &answer) != nil {
		return
	}
	for _, d := range q.registry.dialects {
		if d.Recognizes(path, answer) {
			q.Facts.Backend = d.Name()
			return
		}
	}
}

const modelsPath = "/v1/models"

// ReadFacts asks a worker for what it tells of itself, its load excepted, and finds out
// its dialect. set is the dialect that the operator named, nil for none.
func (r *Registry) ReadFacts(ctx context.Context, ask Ask, set Dialect) *Facts {
	q := &Inquiry{Facts: &Facts{}, ctx: ctx, ask: ask, registry: r, set: set}
	d := cmp.Or(set, r.Default())
	if !d.ListsModels() {
		return q.readByMethods()
	}
	q.Read(q.Facts.readModels, modelsPath)
	q.Facts.Backend = r.owner(q.Facts.Models)
	listed := *q.Facts
	if set == nil {
		d = r.ofFacts(q.Facts)
	}
	d.ReadFacts(q)
	if set != nil {
		return q.Facts
	}
	if q.Facts.Backend == "" && !q.Facts.Incomplete {
		q.askForSigns(d)
	}
	if q.Elsewhere(d) {
		// What the wrong dialect has read means nothing.
		listed.Backend = q.Facts.Backend
		*q.Facts = listed
		r.ofFacts(q.Facts).ReadFacts(q)
	}
	return q.Facts
}

// readByMethods is ReadFacts for engines that speak gRPC. Which dialect one is of is told by
// the methods that it has: the first whose SignPath is answered with status OK.
func (q *Inquiry) readByMethods() *Facts {
	f := q.Facts
	if q.set != nil {
		f.Backend = q.set.Name()
		q.set.ReadFacts(q)
		return f
	}
	for _, d := range q.registry.dialects {
		path := d.SignPath()
		if path == "" {
			continue
		}
		switch status, _, err := q.ask(q.ctx, Question{Path: path}); {
		case err == nil && status/100 == 2:
			f.Backend = d.Name()
			d.ReadFacts(q)
			return f
		case err != nil:
			f.Incomplete = true
			f.Warn("%s: %s", path, err)
			return f
		case status != http.StatusNotImplemented && status != http.StatusNotFound:
			f.Incomplete = f.Incomplete || status >= 500
			f.Answered = true
			f.Warn("%s answers %d", path, status)
		default:
			f.Answered = true
			f.Missing = append(f.Missing, path)
		}
	}
	return f
}

// askForSigns asks for the signs of the dialects other than d, which was tried.
func (q *Inquiry) askForSigns(d Dialect) {
	for _, other := range q.registry.dialects {
		path := other.SignPath()
		if other.Name() == d.Name() || path == "" {
			continue
		}
		status, body, err := q.ask(q.ctx, Question{Path: path})
		var answer Fields
		if err == nil && status/100 == 2 && json.Unmarshal(body, &answer) == nil && other.Recognizes(path, answer) {
			q.Facts.Backend = other.Name()
			return
		}
	}
}

// owner is the dialect of the first model whose owned_by proves one; empty for none.
func (r *Registry) owner(models []ModelInfo) string {
	for _, m := range models {
		for _, d := range r.dialects {
			if d.Owns(m.OwnedBy) {
				return d.Name()
			}
		}
	}
	return ""
}

// ofFacts is the dialect that facts prove, else the default.
func (r *Registry) ofFacts(f *Facts) Dialect {
	if d, ok := r.Named(f.Backend); ok {
		return d
	}
	return r.Default()
}

// The part of a Prober that is common to engines that speak the API over HTTP: they
// list their models, and tell nothing else.

// Owns implements Prober.
func (HTTP) Owns(string) bool { return false }

// SignPath implements Prober.
func (HTTP) SignPath() string { return "" }

// Recognizes implements Prober.
func (HTTP) Recognizes(string, Fields) bool { return false }

// ListsModels implements Prober.
func (HTTP) ListsModels() bool { return true }

// ReadFacts implements Prober.
func (HTTP) ReadFacts(*Inquiry) {}

// Changed implements Prober: by the list of models.
func (HTTP) Changed(ctx context.Context, ask Ask, before *Facts) bool {
	differ, _ := modelsDiffer(ctx, ask, before)
	return differ
}

// modelsDiffer asks for the models and compares them with those of before. ok is false
// if there is no answer.
func modelsDiffer(ctx context.Context, ask Ask, before *Facts) (differ, ok bool) {
	status, body, err := ask(ctx, Question{Path: modelsPath})
	if err != nil || status/100 != 2 && status != http.StatusNotFound {
		return false, false
	}
	now := &Facts{}
	if status != http.StatusNotFound {
		_ = now.readModels(body) // what is no list names nothing
	}
	return !now.SameModels(before), true
}

// HealthPath implements Prober.
func (HTTP) HealthPath(set string) string { return set }

// AlivePath implements Prober.
func (HTTP) AlivePath() string { return "/health" }

// ReadHealth implements Prober: the status says it all.
func (HTTP) ReadHealth(string, []byte) error { return nil }

// SchedulerPath implements Prober.
func (HTTP) SchedulerPath() string { return "" }

// SchedulerQuestions implements Prober.
func (HTTP) SchedulerQuestions(string) []Question { return nil }

// LoadsPath implements Prober.
func (HTTP) LoadsPath() string { return "" }

// ReadLoads implements Prober.
func (HTTP) ReadLoads([]byte) (*Loads, error) { return nil, errors.New("it tells no load") }

// LoadsIdentify implements Prober.
func (HTTP) LoadsIdentify() bool { return false }

// RefusesUnlisted implements Prober.
func (HTTP) RefusesUnlisted() bool { return false }
