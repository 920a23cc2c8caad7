package server

import (
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
)

// headerAnthropicVersion is on every request of Anthropic's SDKs.
const headerAnthropicVersion = "Anthropic-Version"

// modelRoute is /v1/models/{id}; ids may have slashes in them.
var modelRoute = &route{
	name: "model", access: map[string]access{http.MethodGet: client}, allow: []string{http.MethodGet, http.MethodHead},
	serve: (*request).oneModel, bothAPIs: true,
}

// models lists the models that the workers have reported. It asks no worker, so that
// none can stall it.
func (q *request) models() {
	list := q.s.opts.Fleet.Models()
	if q.shape() == openai.ShapeAnthropic {
		q.anthropicModels(list)
		return
	}
	q.reason = reasonOK
	b := []byte(`{"object":"list","data":[`)
	for i := range list {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendModel(b, &list[i])
	}
	q.json(http.StatusOK, append(b, ']', '}'))
}

// oneModel describes one model, adapter, or alias that requests may name.
func (q *request) oneModel() {
	id := strings.TrimPrefix(q.r.URL.Path, pathModels+"/")
	m, ok := q.s.opts.Fleet.Model(id)
	if !ok {
		q.refuse(openai.ModelNotFound(id), reasonNoModel)
		return
	}
	q.reason = reasonOK
	if q.shape() == openai.ShapeAnthropic {
		q.json(http.StatusOK, appendAnthropicModel(nil, &m))
		return
	}
	q.json(http.StatusOK, appendModel(nil, &m))
}

func appendModel(b []byte, m *fleet.ModelInfo) []byte {
	b = openai.AppendString(append(b, `{"id":`...), m.ID)
	b = strconv.AppendInt(append(b, `,"object":"model","created":`...), m.Created, 10)
	owner := m.OwnedBy
	if owner == "" {
		owner = "sluice"
	}
	b = openai.AppendString(append(b, `,"owned_by":`...), owner)
	if m.Root != "" {
		b = openai.AppendString(append(b, `,"root":`...), m.Root)
	}
	if m.Parent != "" {
		b = openai.AppendString(append(b, `,"parent":`...), m.Parent)
	}
	if m.MaxModelLen > 0 {
		b = strconv.AppendInt(append(b, `,"max_model_len":`...), m.MaxModelLen, 10)
	}
	return append(b, '}')
}

func appendAnthropicModel(b []byte, m *fleet.ModelInfo) []byte {
	b = openai.AppendString(append(b, `{"type":"model","id":`...), m.ID)
	b = openai.AppendString(append(b, `,"display_name":`...), m.ID)
	b = openai.AppendString(append(b, `,"created_at":`...), time.Unix(m.Created, 0).UTC().Format(time.RFC3339))
	return append(b, '}')
}

// maxModelPage is the largest page of Anthropic's API, in models.
const maxModelPage = 1000

// anthropicModels lists the models in the form of Anthropic's API: all of them, or a
// page where the query has a limit.
func (q *request) anthropicModels(list []fleet.ModelInfo) {
	query := q.r.URL.Query()
	at := func(name string) int {
		return slices.IndexFunc(list, func(m fleet.ModelInfo) bool { return m.ID == query.Get(name) })
	}
	begin, end := 0, len(list)
	if query.Has("after_id") {
		if i := at("after_id"); i >= 0 {
			begin = i + 1
		} else {
			begin = end
		}
	}
	if query.Has("before_id") {
		end = max(at("before_id"), begin)
	}
	more := false
	if query.Has("limit") {
		limit, err := strconv.Atoi(query.Get("limit"))
		if err != nil || limit < 1 || limit > maxModelPage {
			q.refuse(openai.InvalidRequest("limit", "limit must be a whole number from 1 to %d", maxModelPage), reasonBadRequest)
			return
		}
		if more = end-begin > limit; more && query.Has("before_id") {
			begin = end - limit
		} else if more {
			end = begin + limit
		}
	}
	q.reason = reasonOK
	b := []byte(`{"data":[`)
	page := list[begin:end]
	for i := range page {
		if i > 0 {
			b = append(b, ',')
		}
		b = appendAnthropicModel(b, &page[i])
	}
	b = strconv.AppendBool(append(b, `],"has_more":`...), more)
	first, last := []byte("null"), []byte("null")
	if len(page) > 0 {
		first, last = openai.AppendString(nil, page[0].ID), openai.AppendString(nil, page[len(page)-1].ID)
	}
	b = append(append(b, `,"first_id":`...), first...)
	b = append(append(b, `,"last_id":`...), last...)
	q.json(http.StatusOK, append(b, '}'))
}
