package sim

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

func newWorker(f *Fleet, role Role, i int, o WorkerOptions) *Worker {
	w := &Worker{
		id: fmt.Sprintf("%s-%d", role, i), role: role, fleet: f, opt: o,
		off:    make(map[string]bool),
		counts: make([]rankCounts, o.DPSize),
		log:    ring{limit: o.LogRequests},
		probes: ring{limit: min(o.LogRequests, 1024)},
		rids:   make(map[string]context.CancelCauseFunc),
	}
	w.SetTiming(o.Timing)
	for _, p := range o.Disable {
		w.off[p] = true
	}
	w.routes, w.runs, w.plain = w.infoRoutes(), generationRoutes, make(map[string]plainRoute)
	if o.Backend == VLLM {
		w.routes, w.runs = w.vllmRoutes(), vllmRuns
	}
	if w.translates() {
		w.runs = maps.Clone(generationRoutes)
		w.runs["/v1/responses"], w.runs["/v1/messages"] = responses, messages
	}
	w.plainRoutes()
	return w
}

// translates reports whether an SGLang worker has the routes of the other APIs.
func (w *Worker) translates() bool {
	return w.opt.Backend == SGLang && (w.opt.Responses || w.role == Regular)
}

// generationRoutes run the engine.
var generationRoutes = map[string]api{
	"/v1/chat/completions": chat,
	"/v1/completions":      completions,
	"/generate":            generate,
}

// serve is the worker's handler.
func (w *Worker) serve(l *lifetime, rw http.ResponseWriter, r *http.Request) {
	if !l.enter() {
		panic(http.ErrAbortHandler)
	}
	defer l.handlers.Done()
	path, inside := strings.CutPrefix(r.URL.Path, w.opt.BasePath)
	_, generation := w.runs[path]
	info, known := w.routes[path]
	if known && r.Method == http.MethodHead && path != "/health" && w.opt.Backend == SGLang {
		known = false
	}
	probe := !generation && (known || r.Method != http.MethodPost)
	o := &responseWriter{w: w, rec: w.begin(r, probe), rw: rw, rc: http.NewResponseController(rw),
		conn: connOf(r.Context()), ctx: r.Context(), fault: noFault, probe: probe}
	how := ClientGone // if a failed write panics
	defer func() {
		o.quiet()
		w.finish(o.rec, probe, how)
	}()
	if f := w.faultFor(path, generation); f != nil {
		o.fault = f
	}
	err := o.headerFault(r)
	if err == nil {
		err = w.route(l, o, r, path, inside, generation, info, known)
	}
	how = o.outcome(r, err)
	if o.conn != nil {
		o.conn.writeSize.Store(0)
	}
	if how == Faulted {
		o.quiet()
		o.abort()
	}
	if how == Killed {
		// The connections are reset a moment after the requests' contexts end.
		o.quiet()
		panic(http.ErrAbortHandler)
	}
	if how == ClientGone && w.opt.Backend == VLLM {
		// A client that closed only its sending half gets no answer either.
		o.quiet()
		panic(http.ErrAbortHandler)
	}
}

// outcome is how the answer ended.
func (o *responseWriter) outcome(r *http.Request, err error) Outcome {
	cause := context.Cause(r.Context())
	switch {
	case err == nil:
		return Complete
	case errors.Is(err, errBroken):
		return Faulted
	case errors.Is(cause, errKilled) || errors.Is(err, errKilled):
		return Killed
	}
	return ClientGone
}

// headerFault applies X-Sim-Fault.
func (o *responseWriter) headerFault(r *http.Request) error {
	s := r.Header.Get("X-Sim-Fault")
	if s == "" {
		return nil
	}
	f, err := ParseFault(s)
	if err != nil {
		return o.json(http.StatusBadRequest, invalidf("X-Sim-Fault", "%v", err).body())
	}
	o.setFault(&f)
	return nil
}

func (o *responseWriter) setFault(f *Fault) {
	if f.On == "" || f.On == o.w.role {
		o.fault = f
	}
}

func (w *Worker) route(l *lifetime, o *responseWriter, r *http.Request, path string, inside, generation bool, info http.HandlerFunc, known bool) error {
	w.noteFault(o)
	if err := o.applyFault(AtRequest); err != nil {
		return err
	}
	if o.started {
		return nil
	}
	if o.fault.Early && o.fault.Status > 0 {
		return o.answerStatus()
	}
	plain := w.plain[path]
	if inside && w.opt.Backend == VLLM && strings.HasPrefix(path, "/v1/responses/") {
		return w.storedResponse(o, path)
	}
	if !inside || w.off[path] || (!generation && !known && plain == nil) {
		_, err := io.Copy(io.Discard, http.MaxBytesReader(nil, r.Body, w.opt.MaxBody))
		if err != nil && r.Context().Err() != nil {
			return err
		}
		return o.json(http.StatusNotFound, []byte(`{"detail":"Not Found"}`))
	}
	if (generation || plain != nil) && r.Method != http.MethodPost || known && w.opt.Backend == VLLM && !vllmMethod(path, r.Method) {
		if w.opt.Backend == VLLM {
			o.rw.Header()["Allow"] = []string{map[bool]string{true: http.MethodGet, false: http.MethodPost}[known]}
		}
		return o.json(http.StatusMethodNotAllowed, []byte(`{"detail":"Method Not Allowed"}`))
	}
	if w.opt.APIKey != "" && !strings.HasPrefix(path, "/health") && !strings.HasPrefix(path, "/metrics") &&
		(w.opt.Backend == SGLang || strings.HasPrefix(path, "/v1")) &&
		r.Header.Get("Authorization") != "Bearer "+w.opt.APIKey {
		return o.json(http.StatusUnauthorized, []byte(`{"error":"Unauthorized"}`))
	}
	if known {
		return w.serveInfo(o, r, info)
	}
	body, release, err := w.readBody(o, r)
	if err != nil {
		var tooBig *http.MaxBytesError
		if errors.As(err, &tooBig) {
			return o.json(http.StatusRequestEntityTooLarge, []byte(`{"detail":"Request Entity Too Large"}`))
		}
		return err
	}
	defer release()
	if plain != nil {
		return w.servePlain(o, r, plain, body)
	}
	o.nonce = nonceOf(body)
	if a := w.runs[path]; w.opt.Backend == VLLM || a == responses || a == messages {
		return w.vllmGeneration(l, o, r, a, body)
	}
	return w.generation(l, o, r, w.runs[path], body)
}

func (w *Worker) noteFault(o *responseWriter) {
	if o.fault != noFault {
		w.note(func() { o.rec.Fault = o.fault.String() })
	}
}

// serveInfo answers an information route, with the request's fault applied.
func (w *Worker) serveInfo(o *responseWriter, r *http.Request, info http.HandlerFunc) error {
	ask, err := io.ReadAll(io.LimitReader(r.Body, 1<<20))
	if err != nil {
		return err
	}
	if err := o.applyFault(AtBody); err != nil {
		return err
	}
	if err := o.pause(o.fault.Delay); err != nil {
		return err
	}
	if o.fault.Kind != "" {
		return o.malformed(nil, false)
	}
	if o.fault.Status > 0 {
		return o.answerStatus()
	}
	buffered := &infoWriter{header: make(http.Header), status: http.StatusOK}
	info(buffered, r.WithContext(context.WithValue(r.Context(), abortBody{}, ask)))
	if err := r.Context().Err(); err != nil {
		return err
	}
	if o.fault.Body != "" {
		buffered.body = []byte(o.fault.Body)
	}
	contentType := buffered.header.Get("Content-Type")
	if contentType == "" {
		contentType = "application/json"
	}
	return o.whole(buffered.status, contentType, buffered.body)
}

// infoWriter collects a small answer.
type infoWriter struct {
	header http.Header
	status int
	body   []byte
}

func (i *infoWriter) Header() http.Header         { return i.header }
func (i *infoWriter) WriteHeader(status int)      { i.status = status }
func (i *infoWriter) Write(p []byte) (int, error) { i.body = append(i.body, p...); return len(p), nil }

var bodyPool = sync.Pool{New: func() any { return new([]byte) }}

// readBody reads the body to its end, which also lets net/http notice when the
// client disconnects. The body is valid until release.
func (w *Worker) readBody(o *responseWriter, r *http.Request) (body []byte, release func(), err error) {
	if r.ContentLength > w.opt.MaxBody {
		return nil, nil, &http.MaxBytesError{Limit: w.opt.MaxBody}
	}
	keep := w.opt.LogBodyBytes > 0 && w.opt.LogRequests > 0
	var p *[]byte
	release = func() {}
	if !keep {
		p = bodyPool.Get().(*[]byte)
		body = (*p)[:0]
		release = func() {
			*p = body[:0]
			bodyPool.Put(p)
		}
	}
	if need := int(r.ContentLength); need > 0 && cap(body) <= need {
		// A larger Content-Length is not trusted: the buffer grows as bytes come.
		body = make([]byte, 0, min(need+1, 8<<20))
	}
	src := http.MaxBytesReader(nil, r.Body, w.opt.MaxBody)
	for {
		if len(body) == cap(body) {
			body = append(body, 0)[:len(body)]
		}
		var n int
		n, err = src.Read(body[len(body):cap(body)])
		body = body[:len(body)+n]
		if err != nil {
			break
		}
	}
	w.mu.Lock()
	o.rec.BodySize = len(body)
	if err == io.EOF {
		o.rec.BodyRead = time.Now()
	}
	if keep {
		kept := body
		if len(kept) > w.opt.LogBodyBytes {
			kept = append([]byte(nil), kept[:w.opt.LogBodyBytes]...)
		}
		w.log.keep(o.rec, kept)
	}
	w.mu.Unlock()
	if err != io.EOF {
		release()
		return nil, nil, err
	}
	return body, release, nil
}

// generation serves one request of the engine's own routes.
func (w *Worker) generation(l *lifetime, o *responseWriter, r *http.Request, a api, body []byte) error {
	req, err := parseRequest(a, body)
	if err != nil {
		if o.fault == noFault {
			return o.fail(err, a == generate)
		}
		req = &request{api: a, n: 1}
	}
	if done, ferr := w.deviate(o, req, body); done || ferr != nil {
		return ferr
	}
	f := o.fault
	if err != nil {
		return o.fail(err, a == generate)
	}
	seqs, err := w.sequences(o, req, r)
	if err != nil {
		return o.fail(err, a == generate)
	}
	w.attach(o, req, body, r.Header, seqs)
	ctx, cancel := context.WithCancelCause(r.Context())
	defer cancel(nil)
	if err := w.register(req, o, cancel); err != nil {
		return o.fail(err, false)
	}
	defer w.unregister(req.rid)
	// The native route sends the headers of a stream before the engine runs, the
	// OpenAI routes with the first event.
	if o.early = f.EarlyHeaders || (o.stream && a == generate); o.early {
		contentType := "application/json"
		if o.stream {
			contentType = eventStream
		}
		if err := o.start(http.StatusOK, contentType, -1); err != nil {
			return err
		}
	}
	return w.answer(ctx, l, o, req, seqs)
}

// deviate applies the request's fault before the engine runs. done reports that the
// answer is written.
func (w *Worker) deviate(o *responseWriter, req *request, body []byte) (done bool, err error) {
	if req.simField != nil {
		f, err := ParseFaultJSON(req.simField)
		if err != nil {
			return true, o.fail(invalidf("sim", "%v", err), false)
		}
		o.setFault(&f)
		w.noteFault(o)
	}
	o.stream = req.stream
	f := o.fault
	if f.Echo {
		return true, o.json(http.StatusOK, body)
	}
	if err := o.applyFault(AtBody); err != nil {
		return true, err
	}
	if err := o.pause(f.Delay); err != nil {
		return true, err
	}
	switch f.Kind {
	case "", Informational:
	case EventsForJSON:
		o.stream = true
	case JSONForEvents:
		o.stream = false
	default:
		return true, o.malformed(req, req.stream)
	}
	if f.Status > 0 {
		return true, o.answerStatus()
	}
	return false, nil
}

// register makes the request known to /abort_request.
func (w *Worker) register(req *request, o *responseWriter, cancel context.CancelCauseFunc) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if req.rid == "" {
		req.rid = w.id + "-" + strconv.FormatInt(o.rec.Seq, 10)
	} else if _, twice := w.rids[req.rid]; twice {
		return invalidf("rid", "Duplicate request ID detected: %s", req.rid)
	}
	w.rids[req.rid] = cancel
	o.rec.RID, o.rec.Stream = req.rid, req.stream
	return nil
}

func (w *Worker) unregister(rid string) {
	w.mu.Lock()
	delete(w.rids, rid)
	w.mu.Unlock()
}

// sequences makes the checks of the engine's HTTP server and creates the sequences.
func (w *Worker) sequences(o *responseWriter, req *request, r *http.Request) ([]*sequence, error) {
	if req.api != generate {
		if h := r.Header.Get("X-Data-Parallel-Rank"); h != "" {
			x, err := strconv.ParseInt(h, 10, 64)
			if err != nil {
				return nil, invalidf("", "Invalid X-Data-Parallel-Rank header: must be an integer, got '%s'", h)
			}
			req.routedRank = &x
		}
	}
	dp := int64(w.opt.DPSize)
	if x := req.routedRank; x != nil && (*x < 0 || *x >= dp) {
		return nil, invalidf("routed_dp_rank", "routed_dp_rank=%d out of range [0, %d)", *x, dp)
	}
	if x := req.prefillRank; x != nil && *x < 0 {
		return nil, invalidf("disagg_prefill_dp_rank", "disagg_prefill_dp_rank=%d out of range", *x)
	}
	disaggregated := w.role != Regular
	if disaggregated {
		if err := req.checkLegs(); err != nil {
			return nil, err
		}
	}
	out, finish := w.outputOf(o, req)
	var seqs []*sequence
	for p, tokens := range req.prompts {
		if tokens >= w.opt.ContextLength || (w.role != Prefill && w.pages(tokens+out) > w.opt.KVTokens) || w.pages(tokens) > w.opt.KVTokens {
			return nil, invalidf("", "the input of %d tokens is longer than the context length of %d or than the KV cache of %d",
				tokens, w.opt.ContextLength, w.opt.KVTokens)
		}
		for k := range req.n {
			s := &sequence{index: p*req.n + k, prompt: tokens, out: out, finish: finish, prefillRank: -1}
			s.host, s.port, s.hasPort, s.room, s.hasRoom = req.legs(p, k, w.opt.PerSampleRooms)
			if disaggregated && !s.hasRoom {
				w.fleet.broker.violate(w, RoomMissing, 0, "%s without a room for sequence %d", r.URL.Path, s.index)
				return nil, abortf(400, "Invalid request: Disaggregated request received without bootstrap room id")
			}
			if err := w.rankOf(s, req); err != nil {
				return nil, err
			}
			seqs = append(seqs, s)
		}
	}
	w.mu.Lock()
	e := o.rec
	e.Rank, e.Prompt, e.Host = seqs[0].rank, seqs[0].prompt, seqs[0].host
	if seqs[0].hasPort {
		e.Port = seqs[0].port
	}
	if req.prefillRank != nil {
		e.PrefillRank = int(min(*req.prefillRank, 1<<30))
	}
	for _, s := range seqs {
		if s.hasRoom {
			e.Rooms = append(e.Rooms, s.room)
		}
	}
	w.mu.Unlock()
	return seqs, nil
}

func (w *Worker) outputOf(o *responseWriter, req *request) (int, string) {
	if w.role == Prefill {
		return 1, "length"
	}
	n, finish := req.maxTokens, "length"
	if n < 0 {
		n, finish = w.Timing().OutputTokens, "stop"
	}
	if f := o.fault; len(f.Tokens) > 0 {
		n, finish = len(f.Tokens), "stop"
	} else if f.OutputTokens > 0 && f.OutputTokens < n {
		n, finish = f.OutputTokens, "stop"
	}
	return n, finish
}

// rankOf assigns a sequence to a rank.
func (w *Worker) rankOf(s *sequence, req *request) error {
	dp := w.opt.DPSize
	switch {
	case req.routedRank != nil:
		s.rank = int(*req.routedRank)
	case w.role == Prefill:
		s.rank = int(s.room % int64(dp))
	default:
		s.rank = int(w.nextRank.Add(1) % uint64(dp))
	}
	if w.role == Prefill && s.rank != int(s.room%int64(dp)) {
		w.fleet.broker.violate(w, RankMismatch, s.room, "routed to rank %d of %d, the room says %d", s.rank, dp, s.room%int64(dp))
		return abortf(500, "bootstrap room %d belongs to rank %d, not %d", s.room, s.room%int64(dp), s.rank)
	}
	if req.prefillRank != nil {
		s.prefillRank = int(min(*req.prefillRank, 1<<30))
	}
	return nil
}
