package dispatch

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
	"github.com/sluice-router/sluice/internal/engine"
	"github.com/sluice-router/sluice/internal/fleet"
	"github.com/sluice-router/sluice/internal/openai"
	"github.com/sluice-router/sluice/internal/upstream"
)

// fakeDialect is an engine that does not exist. Its two legs meet in one of the four
// shapes; all that dispatch knows of it is the interface.
type fakeDialect struct {
	engine.HTTP
	shape  engine.Shape
	byRoom bool         // else by an id, where the legs are sent together
	field  openai.Field // of what the legs are told
	// tokens: it takes token ids and gives token events.
	tokens bool
}

func (fakeDialect) Name() string             { return "fake" }
func (fakeDialect) Native(openai.Route) bool { return true }
func (fakeDialect) FansOut() bool            { return false }
func (fakeDialect) DecodesWhole() bool       { return false }
func (fakeDialect) HandOffLost(int) bool     { return false }
func (d fakeDialect) Plan(p *engine.Pair) (engine.Plan, error) {
	l := &fakeLegs{d: d, pair: p}
	switch {
	case d.byRoom:
		l.room = p.Rooms.Mint(0, 1)
	case d.shape == engine.Together:
		l.id = p.NewID()
	}
	return engine.Plan{Shape: d.shape, RequestID: p.RequestID, SameBody: d.byRoom, Legs: l}, nil
}

// TakesTokens implements engine.Dialect.
func (d fakeDialect) TakesTokens() bool { return d.tokens }

// Call sends the request's token ids, and makes events of the API out of those of tokens,
// where the engine is one of tokens.
func (d fakeDialect) Call(ctx context.Context, to *upstream.Endpoint, req *engine.Request) (*upstream.Response, error) {
	if !d.tokens {
		return to.Do(ctx, &req.Request)
	}
	if len(req.Body) > 0 || req.Generate == nil || req.ID == "" {
		return nil, fmt.Errorf("BUG: %d pieces of a body, the request is %v, its id %q", len(req.Body), req.Generate, req.ID)
	}
	transfer := string(req.HandOff)
	if l, ok := req.Legs.(*fakeLegs); ok && l.id != "" {
		transfer = l.id
	}
	frame := []byte(fmt.Sprintf("%-32.32s", transfer))
	for _, ids := range req.Generate.Prompts {
		for _, id := range ids {
			frame = binary.LittleEndian.AppendUint32(frame, id)
		}
	}
	own := req.Request
	own.Path, own.Body, own.Header = "/tokens", [][]byte{frame}, upstream.Header{{Name: "Content-Type", Value: "application/octet-stream"}}
	resp, err := to.Do(ctx, &own)
	if err != nil || resp.Status != http.StatusOK {
		return resp, err
	}
	typ, stream := "application/json", req.Generate.Stream && req.Leg != engine.LegPrefill
	if stream {
		typ = "text/event-stream"
	}
	return upstream.NewResponse(http.StatusOK, upstream.Header{{Name: "Content-Type", Value: typ}}, -1,
		&tokenBody{Body: resp.Body, stream: stream, chat: req.Generate.Route == openai.RouteChatCompletions}), nil
}

// tokenBody makes the API's bytes out of token events.
type tokenBody struct {
	upstream.Body
	stream  bool
	chat    bool
	pending []byte // of an event that came in pieces
	text    string
	over    bool
}

func (b *tokenBody) Next() ([]byte, error) {
	for !b.over {
		piece, err := b.Body.Next()
		if err != nil && err != io.EOF {
			return nil, err
		}
		var out []byte
		for b.pending = append(b.pending, piece...); len(b.pending) >= 4; b.pending = b.pending[4:] {
			word := string(rune(binary.LittleEndian.Uint32(b.pending)))
			b.text += word
			if b.stream {
				out = fmt.Appendf(out, "data: {\"choices\":[{\"index\":0,%s}]}\n\n", b.said("delta", word))
			}
		}
		if err == io.EOF {
			b.over = true
			if b.stream {
				return append(out, "data: {\"choices\":[{\"index\":0,\"delta\":{},\"text\":\"\",\"finish_reason\":\"stop\"}],\"usage\":{\"prompt_tokens\":2,\"completion_tokens\":3}}\n\ndata: [DONE]\n\n"...), nil
			}
			return fmt.Appendf(nil, `{"choices":[{"index":0,%s,"finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":%d}}`, b.said("message", b.text), len(b.text)), nil
		}
		if len(out) > 0 {
			return out, nil
		}
	}
	return nil, io.EOF
}

func (b *tokenBody) said(in, text string) string {
	if b.chat {
		return fmt.Sprintf(`%q:{"role":"assistant","content":%q}`, in, text)
	}
	return fmt.Sprintf(`"text":%q`, text)
}

func (b *tokenBody) Buffered() int { return 0 }
func (b *tokenBody) Done() bool    { return b.over }

type fakeLegs struct {
	d    fakeDialect
	pair *engine.Pair
	room int64
	id   string
}

func (l *fakeLegs) edit(s *openai.Splicer) {
	switch {
	case l.d.byRoom:
		s.SetInt(l.d.field, l.room)
	case l.id != "":
		s.SetString(l.d.field, l.id)
	}
}

func (l *fakeLegs) EditPrefill(s *openai.Splicer) {
	if l.edit(s); !l.d.byRoom {
		s.SetInt(openai.FieldMaxTokens, 1)
		s.SetBool(openai.FieldStream, false)
	}
}

func (l *fakeLegs) EditDecode(s *openai.Splicer, handOff []byte) {
	if l.edit(s); handOff != nil {
		s.SetRaw(l.d.field, handOff)
	}
}

func (l *fakeLegs) HandOff(answer []byte) ([]byte, error) {
	state, ok := openai.RawField(answer, l.d.field.String())
	if !ok {
		return nil, engine.ErrNoHandOff
	}
	return state, nil
}

func (l *fakeLegs) Dispensable(int) bool { return false }

func (l *fakeLegs) Release() {
	if l.d.byRoom {
		l.pair.Rooms.Free(l.room)
	}
}

// fakeEngines are one prefill and one decode worker. Decode answers with text only if
// its prefill leg was told the same as it.
type fakeEngines struct {
	field string
	state string // what prefill hands over, as JSON

	mu   sync.Mutex
	legs map[string]chan struct{} // guarded by mu; closed when the prefill leg is there
	saw  map[string][]string      // guarded by mu; bodies by role
}

func (f *fakeEngines) leg(key string) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.legs[key] == nil {
		f.legs[key] = make(chan struct{})
	}
	return f.legs[key]
}

func (f *fakeEngines) serve(role string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil || r.Method != http.MethodPost {
			_, _ = io.WriteString(w, "{}")
			return
		}
		f.mu.Lock()
		f.saw[role] = append(f.saw[role], string(body))
		f.mu.Unlock()
		key, stream := "", false
		if r.URL.Path == "/tokens" {
			key = string(body[:32])
		} else {
			var in map[string]json.RawMessage
			_ = json.Unmarshal(body, &in)
			key, stream = string(in[f.field]), string(in["stream"]) == "true"
		}
		switch {
		case f.state != "" && role == "prefill":
			fmt.Fprintf(w, `{"choices":[],"usage":{"prompt_tokens":2,"completion_tokens":1},%q:%s}`, f.field, f.state)
			return
		case f.state != "" && key != f.state:
			http.Error(w, `{"error":{"message":"it was handed `+key+`"}}`, http.StatusBadRequest)
			return
		case role == "regular":
		case f.state == "" && role == "prefill":
			close(f.leg(key))
		case f.state == "":
			select {
			case <-f.leg(key):
			case <-r.Context().Done():
				return
			}
		}
		switch {
		case r.URL.Path == "/tokens":
			for _, c := range "met" {
				_ = binary.Write(w, binary.LittleEndian, uint32(c))
				_ = http.NewResponseController(w).Flush()
			}
		case stream:
			w.Header().Set("Content-Type", "text/event-stream")
			_, _ = io.WriteString(w, "data: {\"choices\":[{\"index\":0,\"text\":\"met\"}]}\n\ndata: [DONE]\n\n")
		default:
			w.Header().Set("Content-Type", "application/json")
			_, _ = io.WriteString(w, `{"choices":[{"index":0,"text":"met","finish_reason":"stop"}],"usage":{"prompt_tokens":2,"completion_tokens":1}}`)
		}
	}
}

// A request runs whole in each shape that an engine may want its legs in, of an engine
// of which nothing outside its dialect knows.
func TestDialectShapes(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		dialect fakeDialect
		state   string
	}{
		"together by a room":                {fakeDialect{shape: engine.Together, byRoom: true, field: openai.FieldBootstrapRoom}, ""},
		"together by a transfer id":         {fakeDialect{shape: engine.Together, field: openai.FieldTransferID}, ""},
		"prefill hands an object over":      {fakeDialect{shape: engine.PrefillFirst, field: openai.FieldKVTransferParams}, `{"host":"h", "n":9007199254740993}`},
		"prefill hands opaque state over":   {fakeDialect{shape: engine.PrefillFirst, field: openai.FieldDisaggregatedParams}, `"b3BhcXVl\u00e9"`},
		"token ids go in, token events out": {fakeDialect{shape: engine.Together, field: openai.FieldTransferID, tokens: true}, ""},
	} {
		for _, extra := range []string{"", streamed} {
			t.Run(name+extra, func(t *testing.T) {
				t.Parallel()
				engines := &fakeEngines{field: c.dialect.field.String(), state: c.state, legs: map[string]chan struct{}{}, saw: map[string][]string{}}
				o := rigOptions{pd: true, dialects: engine.NewRegistry(c.dialect)}
				if c.dialect.tokens {
					o.bounds.Texts = func(string) Text { return Text{TakesTokens: true, Reader: new(byteReader)} }
				}
				r := newRig(t, o)
				for role, typ := range map[string]config.WorkerType{"prefill": config.WorkerPrefill, "decode": config.WorkerDecode} {
					s := httptest.NewServer(engines.serve(role))
					t.Cleanup(s.Close)
					if _, _, err := r.fleet.Add(t.Context(), fleet.WorkerSpec{URL: s.URL, Type: typ, Backend: "fake", ModelID: "sim-model"}); err != nil {
						t.Fatal(err)
					}
				}
				r.until("both are candidates", func() bool {
					return r.gate.Candidates(admission.RolePrefill) == 1 && r.gate.Candidates(admission.RoleDecode) == 1
				})
				a := r.do(t.Context(), "/v1/completions", `{"model":"sim-model","prompt":"hi","max_tokens":3`+extra+`}`)
				if a.status != 200 || a.err != nil || answerText(t, a.body) != "met" || extra != "" && !strings.HasSuffix(a.body, "data: [DONE]\n\n") {
					t.Errorf("%d %v %q", a.status, a.err, a.body)
				}
				r.waitRecord(0)
				if rec := r.waitRecord(0); rec.Reason != reasonOK || rec.PrefillRank == "" || rec.DecodeRank == "" || rec.TTFT == 0 {
					t.Errorf("%+v", rec)
				}
				r.idle()
				engines.mu.Lock()
				defer engines.mu.Unlock()
				p, d := engines.saw["prefill"], engines.saw["decode"]
				if len(p) != 1 || len(d) != 1 || c.dialect.byRoom != (p[0] == d[0]) && !c.dialect.tokens {
					t.Errorf("prefill was sent %q, decode %q", p, d)
				}
			})
		}
	}
}
