package fleet

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/kv/events"
)

// kvEventSources is what an engine says of where it publishes the events of its KV cache.
type kvEventSources struct {
	asked bool // it was asked; otherwise the rest means nothing
	// told: it said it. Otherwise err is why not, where it may come to say it; nil where its
	// kind cannot be asked.
	told bool
	list []events.Source // none: it publishes no events
	err  error
	note string // why some of its ranks are not in the list
}

func (p *httpProber) kvEvents(ctx context.Context, w *Worker, f *Facts) kvEventSources {
	d := w.dialectBy(f)
	if d.PushesKVEvents() {
		return kvEventSources{asked: true, told: true, list: pushedSources(w.url, f.DPSize)}
	}
	path := d.KVEventsPath(&f.Facts)
	if path == "" {
		return kvEventSources{asked: true}
	}
	status, body, err := p.asker(w)(ctx, engine.Question{Path: path})
	switch {
	case err != nil:
		return kvEventSources{asked: true, err: err}
	case behindAProxy(status) || status == 500 || status == 429:
		return kvEventSources{asked: true, err: fmt.Errorf("%s answers %d", path, status)}
	case status/100 != 2:
		return kvEventSources{asked: true}
	}
	list, err := d.ReadKVEvents(w.base.Host, body)
	switch {
	case errors.Is(err, events.ErrNoSources):
		return kvEventSources{asked: true, told: true}
	case err != nil && len(list) == 0:
		return kvEventSources{asked: true, err: err}
	case err != nil:
		return kvEventSources{asked: true, told: true, list: list, note: "; " + err.Error()}
	}
	return kvEventSources{asked: true, told: true, list: list}
}

// pushedSources are those of an engine that pushes its events: one stream has all ranks.
func pushedSources(url string, ranks int) (list []events.Source) {
	for dp := range max(ranks, 1) {
		list = append(list, events.Source{Rank: dp, Endpoint: url, Pushed: true})
	}
	return list
}

// Labels that stand for the ports of a worker's KV events, over what its engine says.
const (
	labelEventsPort = "kv_events_port"
	labelReplayPort = "kv_events_replay_port"
)

// labelPort is the port that a label of the worker names; 0: none.
func (w *Worker) labelPort(name string) int {
	n, err := strconv.Atoi(w.spec.Load().Labels[name])
	if err != nil || n < 1 || n > 65535 {
		return 0
	}
	return n
}

// Why a rank has no stream of events, for the operator.
const (
	whyEventsOff     = "kv_events is off"
	whyNotAsked      = "its engine was not asked yet where it publishes events"
	whyNoEvents      = "its engine publishes no events of its KV cache"
	whyNotTold       = "its engine does not say whether it publishes events of its KV cache; kv_events_port names their port"
	whyRanksTogether = "its data-parallel ranks have a cache each and are scheduled as one; dp_aware schedules them apart"
)

// kvSource is where the events of a rank are, as its labels, its engine or the configuration
// say; else why there are none.
func (r *Rank) kvSource(k *kvEventSources, c *config.KV) (s events.Source, why string) {
	w := r.worker
	if c.Events == config.KVEventsOff {
		return s, whyEventsOff
	}
	if r.dp < 0 && (w.Facts().DPSize > 1 || len(k.list) > 1) {
		return s, whyRanksTogether
	}
	if port := w.labelPort(labelEventsPort); port > 0 {
		return r.sourceAt(port, w.labelPort(labelReplayPort))
	}
	switch {
	case k.told && len(k.list) > 0:
		return r.sourceOf(k)
	case k.told:
		return s, whyNoEvents
	case !k.asked:
		return s, whyNotAsked
	case c.EventsPort > 0:
		return r.sourceAt(c.EventsPort, c.ReplayPort)
	case k.err != nil:
		return s, "its engine does not say where it publishes events: " + k.err.Error()
	}
	return s, whyNotTold
}

// sourceAt is the source at ports that an operator has named, those of rank 0.
func (r *Rank) sourceAt(port, replay int) (events.Source, string) {
	again := ""
	if replay > 0 {
		again = fmt.Sprintf("tcp://*:%d", replay)
	}
	s, err := events.ConfiguredSource(r.worker.base.Host, fmt.Sprintf("tcp://*:%d", port), again, "", max(r.dp, 0))
	if err != nil {
		return s, err.Error()
	}
	s.Rank = events.AnyRank
	return s, ""
}

// sourceOf is the one of an engine's sources that is the rank's. Engines number their ranks
// from 0, or by their place among those of all servers of the model.
func (r *Rank) sourceOf(k *kvEventSources) (events.Source, string) {
	list, at := k.list, 0
	if r.dp >= 0 {
		find := func(n int) int { return slices.IndexFunc(list, func(s events.Source) bool { return s.Rank == n }) }
		if at = find(r.dp + r.worker.Facts().FirstRank); at < 0 {
			at = find(r.dp)
		}
	}
	if at < 0 {
		return events.Source{}, fmt.Sprintf("its engine publishes no events of data-parallel rank %d%s", r.dp, k.note)
	}
	s := list[at]
	// Which rank events say to be of matters only where several are told at one place, since
	// engines count their ranks in two ways.
	shared := func(o events.Source) bool { return o.Rank != s.Rank && o.Endpoint == s.Endpoint }
	if !slices.ContainsFunc(list, shared) {
		s.Rank = events.AnyRank
	}
	return s, ""
}

// kvEventWarnings are what is odd about how a worker's events were set.
func (w *Worker) kvEventWarnings() (list []string) {
	for _, name := range [...]string{labelEventsPort, labelReplayPort} {
		if l := w.spec.Load().Labels[name]; l != "" && w.labelPort(name) == 0 {
			list = append(list, fmt.Sprintf("its label %s=%.64q is no port from 1 to 65535 and is ignored", name, l))
		}
	}
	return list
}
