package server

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/text"
)

// worker describes one worker, replaces or changes its settings, or removes it. The path
// has its id or its URL.
func (q *request) worker() {
	id := strings.TrimPrefix(q.r.URL.Path, pathWorkers+"/")
	switch q.r.Method {
	case http.MethodPut:
		q.putWorker(id)
	case http.MethodPatch:
		q.patchWorker(id)
	case http.MethodDelete:
		q.removeWorker(id)
	default:
		w, ok := q.s.opts.Fleet.Get(id)
		if !ok {
			q.refuse(workerNotFound(id), reasonNoWorker)
			return
		}
		info := w.Info()
		q.document(http.StatusOK, &info)
	}
}

// changed is the answer to a change of a worker that is in force. The first four fields
// are those of the SGLang model gateway, which answers before the change is made.
type changed struct {
	Status   string     `json:"status"`
	WorkerID string     `json:"worker_id"`
	URL      string     `json:"url"`
	Location string     `json:"location"`
	Worker   fleet.Info `json:"worker"`
}

func (q *request) changed(status int, what string, w *fleet.Worker) {
	c := changed{Status: what, WorkerID: w.ID(), URL: w.URL(), Location: pathWorkers + "/" + w.ID(), Worker: w.Info()}
	q.out.Header()["Location"] = []string{c.Location}
	q.document(status, &c)
}

// refuseChange answers an error of a change of a worker. w may be nil.
func (q *request) refuseChange(w *fleet.Worker, id string, err error) {
	if w != nil {
		id = w.ID()
	}
	var wrong *fleet.SpecError
	switch {
	case errors.As(err, &wrong):
		q.refuse(openai.InvalidRequest(wrong.Field, "%s", err), reasonBadRequest)
	case errors.Is(err, fleet.ErrUnknownWorker):
		q.refuse(workerNotFound(id), reasonNoWorker)
	case errors.Is(err, fleet.ErrLeaving):
		q.refuse(workerLeaving(id), reasonWorkerLeaving)
	case errors.Is(err, fleet.ErrClosed):
		q.refuse(openai.Draining(), reasonDraining)
	default:
		q.refuse(openai.Internal(err), reasonInternal)
	}
}

// putWorker replaces all settings of a worker, or registers it if there is none of its
// name: a worker's id is made of its URL.
func (q *request) putWorker(id string) {
	body, ok := q.smallBody()
	if !ok {
		return
	}
	url := ""
	old, known := q.s.opts.Fleet.Get(id)
	if known {
		url = old.URL()
	}
	spec, e := q.s.readWorker(body, url)
	switch {
	case e != nil && !known && spec.URL == "" && e.Param == "url": // the body names no worker either
		q.refuse(workerNotFound(id), reasonNoWorker)
		return
	case e != nil:
		q.refuse(e, reasonBadRequest)
		return
	case !q.s.opts.Fleet.Names(id, spec.URL):
		if known {
			q.refuse(openai.InvalidRequest("url", "url is %q, and the worker of the path has the URL %s; a worker's URL does not change: remove this one, and register the other",
				text.Line(spec.URL), url), reasonBadRequest)
		} else {
			q.refuse(workerNotFound(id), reasonNoWorker)
		}
		return
	}
	w, _, err := q.s.opts.Fleet.Add(q.r.Context(), spec, q.orderedBy()...)
	switch {
	case err != nil:
		q.refuseChange(nil, id, err)
	case known:
		q.changed(http.StatusOK, "updated", w)
	default:
		q.changed(http.StatusCreated, "created", w)
	}
}

// patchWorker changes the settings of a worker that the body names.
func (q *request) patchWorker(id string) {
	body, ok := q.smallBody()
	if !ok {
		return
	}
	patch, e := readPatch(body)
	if e != nil {
		q.refuse(e, reasonBadRequest)
		return
	}
	w, err := q.s.opts.Fleet.Patch(q.r.Context(), id, patch, q.orderedBy()...)
	if err != nil {
		q.refuseChange(w, id, err)
		return
	}
	q.changed(http.StatusOK, "updated", w)
}

// patchDoc is the body of a PATCH, as a JSON merge patch has it: an absent field does
// not change, null takes a setting back.
type patchDoc struct {
	Priority            *int               `json:"priority"`
	Labels              map[string]*string `json:"labels"`
	PrefillMaxInflight  int64              `json:"prefill_max_inflight_requests"`
	MaxRunningRequests  int64              `json:"max_running_requests"`
	MaxNumBatchedTokens int64              `json:"max_num_batched_tokens"`
	TotalKVBlocks       int64              `json:"total_kv_blocks"`
	BlockSize           int64              `json:"block_size"`
	KVConnector         string             `json:"kv_connector"`
	TopologyDomain      string             `json:"topology_domain"`
	Adapters            []string           `json:"adapters"`
	APIKey              config.Secret      `json:"api_key"`
}

func readPatch(body []byte) (*fleet.Patch, *openai.Error) {
	var doc patchDoc
	var fields map[string]json.RawMessage
	if json.Unmarshal(body, &fields) == nil {
		may, others := fieldNames(&doc), fieldNames(&config.Worker{})
		for name := range fields {
			if slices.Contains(others, name) && !slices.Contains(may, name) {
				return nil, openai.InvalidRequest(name, "%s cannot be changed by PATCH; send all of the worker's settings with PUT", name)
			}
		}
	}
	if err := readStrict(body, &doc, "change a worker"); err != nil {
		return nil, err
	}
	p := &fleet.Patch{Values: config.Worker{
		Priority: doc.Priority, PrefillMaxInflight: doc.PrefillMaxInflight, MaxRunningRequests: doc.MaxRunningRequests,
		MaxNumBatchedTokens: doc.MaxNumBatchedTokens, TotalKVBlocks: doc.TotalKVBlocks, BlockSize: doc.BlockSize,
		KVConnector: doc.KVConnector, TopologyDomain: doc.TopologyDomain, Adapters: doc.Adapters, APIKey: doc.APIKey,
	}}
	for name, raw := range fields {
		switch isNull := string(raw) == "null"; {
		case name == "labels":
			p.UnsetAllLabels = isNull
		case isNull:
			p.Unset = append(p.Unset, name)
		default:
			p.Set = append(p.Set, name)
		}
	}
	for k, v := range doc.Labels {
		if v == nil {
			p.UnsetLabels = append(p.UnsetLabels, k)
			continue
		}
		if p.Values.Labels == nil {
			p.Values.Labels = map[string]string{}
		}
		p.Values.Labels[k] = *v
	}
	return p, nil
}

// maxDrainSecs bounds the time that DELETE gives requests, in seconds: a day.
const maxDrainSecs = 24 * 60 * 60

// removeWorker removes a worker. The query may bound the time for its requests.
func (q *request) removeWorker(id string) {
	query, e := readQuery(q.r.URL.RawQuery, "timeout")
	if e != nil {
		q.refuse(e, reasonBadRequest)
		return
	}
	var w *fleet.Worker
	var ok bool
	if query.Has("timeout") {
		secs, err := strconv.ParseFloat(query.Get("timeout"), 64)
		if err != nil || !(secs >= 0 && secs <= maxDrainSecs) {
			q.refuse(openai.InvalidRequest("timeout", "timeout must be a number of seconds from 0 to %d: how long the requests of the worker may still run; 0 ends them at once", maxDrainSecs), reasonBadRequest)
			return
		}
		w, ok = q.s.opts.Fleet.RemoveWithin(id, time.Duration(secs*float64(time.Second)), q.orderedBy()...)
	} else {
		w, ok = q.s.opts.Fleet.Remove(id, q.orderedBy()...)
	}
	if !ok {
		q.refuse(workerNotFound(id), reasonNoWorker)
		return
	}
	q.accepted(w)
}

// readQuery reads the query of an admin request, which may have the named parameters,
// each once. Another one is refused: with one that is misspelt, more would happen than was
// asked for.
func readQuery(raw string, may ...string) (url.Values, *openai.Error) {
	query, err := url.ParseQuery(raw)
	if err != nil {
		return nil, openai.InvalidRequest("", "the query cannot be read")
	}
	for name, values := range query {
		switch {
		case len(may) == 0:
			return nil, openai.InvalidRequest(text.Line(name), "this takes no query parameters")
		case !slices.Contains(may, name):
			return nil, openai.InvalidRequest(text.Line(name), "there is no query parameter of this name here; there is %s", strings.Join(may, ", "))
		case len(values) > 1:
			return nil, openai.InvalidRequest(name, "%s is there twice", name)
		}
	}
	return query, nil
}

// drainWorker drains a worker by hand, or ends that.
func (q *request) drainWorker() {
	if _, e := readQuery(q.r.URL.RawQuery); e != nil {
		q.refuse(e, reasonBadRequest)
		return
	}
	path := strings.TrimPrefix(q.r.URL.Path, pathWorkers+"/")
	id, undrain := strings.CutSuffix(path, suffixUndrain)
	if !undrain {
		id = strings.TrimSuffix(path, suffixDrain)
	}
	w, err := q.s.opts.Fleet.SetDrained(id, !undrain, q.orderedBy()...)
	if err != nil {
		q.refuseChange(w, id, err)
		return
	}
	what := "drained"
	if undrain {
		what = "undrained"
	}
	q.changed(http.StatusOK, what, w)
}
