package translate

import (
	"encoding/json"
	"errors"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

var testOptions = Options{ID: "t1", Created: 1700000000}

// translated translates a valid request.
func translated(t *testing.T, route openai.Route, body string) (chat string, x Exchange) {
	t.Helper()
	b, x, err := translate(route, body, testOptions)
	if err != nil {
		t.Fatalf("%s: %v", body, err)
	}
	if !json.Valid(b) {
		t.Fatalf("%s became %s, which is not JSON", body, b)
	}
	return string(b), x
}

func translate(route openai.Route, body string, opts Options) ([]byte, Exchange, error) {
	if route == openai.RouteMessages {
		b, m, err := MessagesRequest([]byte(body), opts)
		return b, m, err
	}
	b, r, err := ResponsesRequest([]byte(body), opts)
	return b, r, err
}

// wantChat checks the chat body that a request becomes.
func wantChat(t *testing.T, route openai.Route, name, in, want string) {
	t.Helper()
	if got, _ := translated(t, route, in); got != want {
		t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
	}
}

// wantAnswer checks the answer that a chat choice becomes.
func wantAnswer(t *testing.T, x Exchange, name, choice, want string) {
	t.Helper()
	got, err := x.Answer([]byte(chatWhole(choice)), 0)
	if err != nil {
		t.Errorf("%s: %v", name, err)
	} else if string(got) != want {
		t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
	}
}

// wantRefusal checks that a request is refused, and why. It returns the error, nil if
// there was none.
func wantRefusal(t *testing.T, route openai.Route, in, param, code string) *openai.Error {
	t.Helper()
	_, _, err := translate(route, in, testOptions)
	if err == nil {
		t.Errorf("%s passed", in)
		return nil
	}
	e := refusal(t, err)
	if e.Param != param || e.Code != code {
		t.Errorf("%s: param %q, code %q; want %q, %q (%s)", in, e.Param, e.Code, param, code, e.Message)
	}
	return e
}

// translateStream translates a stream that comes in the given pieces.
func translateStream(t *testing.T, x Exchange, pieces ...string) string {
	t.Helper()
	out, err := tellErr(x, pieces...)
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func tellErr(x Exchange, pieces ...string) (string, error) {
	var out strings.Builder
	write := func(b []byte) { out.Write(b) }
	s := x.Stream(0)
	for _, p := range pieces {
		if err := s.Feed([]byte(p), write); err != nil {
			return out.String(), err
		}
	}
	err := s.End(write)
	return out.String(), err
}

// chatStream makes a chat stream of choices (each the members of a delta); an argument
// that begins with "{" is a whole event.
func chatStream(events ...string) string {
	var b strings.Builder
	for _, e := range events {
		if !strings.HasPrefix(e, "{") {
			e = `{"id":"c1","object":"chat.completion.chunk","created":1,"model":"m","choices":[{"index":0,` + e + `}]}`
		}
		b.WriteString("data: " + e + "\n\n")
	}
	return b.String() + "data: [DONE]\n\n"
}

const usageEvent = `{"id":"c1","model":"m","choices":[],"usage":{"prompt_tokens":10,"completion_tokens":4,"total_tokens":14,"prompt_tokens_details":{"cached_tokens":3},"reasoning_tokens":2}}`

// golden compares with a file under testdata, which UPDATE_GOLDEN=1 writes.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
	}
}

// event is one event of a translated stream.
type event struct {
	name string
	data map[string]any
}

// readEvents checks the framing of a translated stream.
func readEvents(t *testing.T, stream string) []event {
	t.Helper()
	var events []event
	for _, block := range strings.Split(strings.TrimSuffix(stream, "\n\n"), "\n\n") {
		for strings.HasPrefix(block, ":") {
			_, block, _ = strings.Cut(block, "\n")
		}
		if block == "" {
			continue
		}
		lines := strings.Split(block, "\n")
		if len(lines) != 2 || !strings.HasPrefix(lines[0], "event: ") || !strings.HasPrefix(lines[1], "data: ") {
			t.Fatalf("bad framing: %q", block)
		}
		e := event{name: strings.TrimPrefix(lines[0], "event: ")}
		if err := json.Unmarshal([]byte(strings.TrimPrefix(lines[1], "data: ")), &e.data); err != nil {
			t.Fatalf("%q: %v", block, err)
		}
		if e.data["type"] != e.name && e.name != "error" {
			t.Fatalf("event %s has type %v", e.name, e.data["type"])
		}
		events = append(events, e)
	}
	return events
}

func sameJSON(t *testing.T, got, want string) {
	t.Helper()
	var g, w any
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		t.Fatalf("%s: %v", got, err)
	}
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatalf("%s: %v", want, err)
	}
	if !reflect.DeepEqual(g, w) {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// cuts are the ways in which a stream is cut in tests: whole, byte by byte, at random.
func cuts(stream string, r *rand.Rand) [][]string {
	all := [][]string{{stream}, strings.Split(stream, "")}
	for range 20 {
		var pieces []string
		for rest := stream; rest != ""; {
			n := min(len(rest), 1+r.IntN(40))
			pieces, rest = append(pieces, rest[:n]), rest[n:]
		}
		all = append(all, pieces)
	}
	return all
}

func refusal(t *testing.T, err error) *openai.Error {
	t.Helper()
	var e *openai.Error
	if !errors.As(err, &e) {
		t.Fatalf("%v is no *openai.Error", err)
	}
	if e.Status != 400 {
		t.Fatalf("status %d: %v", e.Status, e)
	}
	return e
}
