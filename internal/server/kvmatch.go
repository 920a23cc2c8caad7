package server

import (
	"net/http"

	"github.com/sluice-router/sluice/internal/openai"
)

// kvRoutes are the APIs whose prompts are looked up in the index of KV caches, by the name in
// the query of /kv/match.
var kvRoutes = map[string]openai.Route{
	"chat": openai.RouteChatCompletions, "completions": openai.RouteCompletions, "generate": openai.RouteGenerate,
	"messages": openai.RouteMessages, "responses": openai.RouteResponses,
	pathChatCompletions: openai.RouteChatCompletions, pathCompletions: openai.RouteCompletions, pathGenerate: openai.RouteGenerate,
	pathMessages: openai.RouteMessages, pathResponses: openai.RouteResponses,
}

// kvMatch tells which workers are believed to have how much of the body's prompt cached. The
// body is that of a request of the API that the query names, chat if it names none; it is read
// within the same bounds, and the answer has nothing of it.
func (q *request) kvMatch() {
	query, bad := readQuery(q.r.URL.RawQuery, "route")
	if bad != nil {
		q.refuse(bad, reasonBadRequest)
		return
	}
	name := query.Get("route")
	if name == "" {
		name = "chat"
	}
	route, ok := kvRoutes[name]
	if !ok {
		q.refuse(openai.InvalidRequest("route", "route takes chat, completions, generate, messages or responses, or the path of one of them"), reasonBadRequest)
		return
	}
	defer q.free()
	if p := q.readBody(); p != nil {
		if q.reason = p.reason; p.answer != nil {
			q.refuse(p.answer, p.reason)
		}
		return
	}
	peeked, err := openai.Peek(route, q.buf.b[:q.length], q.s.peek)
	if err != nil {
		q.refuse(asError(err), reasonBadRequest)
		return
	}
	if route != openai.RouteResponses && peeked.PromptKind == openai.PromptNone {
		// Most often it is the body of another API, and "nobody has any of it" would mislead.
		q.refuse(openai.InvalidRequest("route", "the body has no prompt as a request of %s has one; for that of another API add ?route= with completions, generate, messages or responses",
			name), reasonBadRequest)
		return
	}
	q.call.Peeked = peeked
	q.model = peeked.Model
	match, bad, reason := q.s.opts.Dispatcher.MatchCaches(peeked, q.r.Header)
	if bad != nil {
		q.refuse(bad, reason)
		return
	}
	q.document(http.StatusOK, match)
}
