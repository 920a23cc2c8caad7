package sim

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
)

// Action is what a fault does to the connection at its Point.
type Action string

// The actions.
const (
	Reset  Action = "reset"  // RST
	Close  Action = "close"  // FIN, in the middle of an answer too
	End    Action = "end"    // a well-formed end of the body, without [DONE]
	Freeze Action = "freeze" // nothing is sent until the client disconnects

	// Of gRPC workers only.
	GoAway Action = "goaway" // GOAWAY on all connections; calls go on, and new connections are served
	Die    Action = "die"    // the engine ends, the server goes on
)

// Point is where in a request a fault takes effect.
type Point string

// The points, in the order of a request's life.
const (
	AtAccept  Point = "accept"  // before anything is read
	AtRequest Point = "request" // the request's headers are read, its body is not
	AtBody    Point = "body"    // the body is read, nothing answered
	AtHeaders Point = "headers" // the answer's headers are sent
	AtEvent   Point = "event"   // Fault.After events are sent
	AtInside  Point = "inside"  // Fault.After events and half of the next are sent
	AtEnd     Point = "end"     // all is sent but [DONE] and the end of the body
)

// Kind is a malformed answer.
type Kind string

// The malformed answers.
const (
	Garbage        Kind = "garbage"         // bytes that are no HTTP
	Truncated      Kind = "truncated"       // Content-Length larger than the body, then FIN
	ChunkLine      Kind = "chunk-line"      // a chunk extension that never ends
	HugeHeader     Kind = "huge-header"     // one header of 1 MiB
	ErrorInside200 Kind = "error-in-200"    // 200 with an error object as JSON
	ErrorEvent     Kind = "error-event"     // 200, an error as the first event, [DONE]
	EventsForJSON  Kind = "events-for-json" // an event stream, whatever was asked for
	JSONForEvents  Kind = "json-for-events" // JSON, whatever was asked for
	EOFDelimited   Kind = "eof"             // the answer without length, ended by FIN
	Surplus        Kind = "surplus"         // bytes after a complete answer
	Informational  Kind = "1xx"             // 103 twice, then a normal answer

	// Of gRPC workers only: answers of Generate. Garbage is a message that is no message.
	CompleteTwice      Kind = "complete-twice"
	ChunkAfterComplete Kind = "chunk-after-complete"
	NoComplete         Kind = "no-complete"  // the stream ends with status OK and without it
	BadIndex           Kind = "bad-index"    // the index is n
	BadIDs             Kind = "bad-ids"      // ids beyond the vocabulary
	HugeMessage        Kind = "huge-message" // of Fault.BodySize bytes, default 16 MiB, but right otherwise
)

// Fault is a deviation from a healthy answer. It applies to requests of
// generation routes unless Path names another. One with AcceptDelay or AtAccept
// applies to connections instead, whatever is then requested over them; its other
// fields have no effect.
type Fault struct {
	// On restricts it to a role, Path to paths with that prefix ("/health").
	On   Role
	Path string
	// Skip lets that many matching requests pass first; Count is how many it then
	// applies to, 0: all.
	Skip, Count int

	// AcceptDelay delays a new connection's first read, Delay is the time between
	// the request's body and the answer's headers, FirstByte between headers
	// and body, EventDelay before each event but the first.
	AcceptDelay, Delay, FirstByte, EventDelay time.Duration
	// EarlyHeaders sends the headers (200) before the engine has run.
	EarlyHeaders bool
	// KeepAlive is the interval at which Comment is sent once the headers are sent
	// (default ": keep-alive\n\n"; a space in a JSON answer).
	KeepAlive time.Duration
	Comment   string

	// Status answers with that status instead of running the engine, with Body
	// (default: an error object), repeated or cut to BodySize if that is
	// positive. Early answers before the body is read.
	Status   int
	Body     string
	BodySize int
	Early    bool
	// Header is added to every answer; ContentType replaces the usual one.
	Header      http.Header
	ContentType string

	// Do is done at the point At, after After events.
	Do    Action
	At    Point
	After int

	// WriteSize cuts writes to the socket into pieces of that many bytes,
	// WritePause apart.
	WriteSize  int
	WritePause time.Duration

	// Kind is a malformed answer in place of the engine's.
	Kind Kind

	// Of gRPC workers only. Code answers with that status, by its name ("UNAVAILABLE"),
	// instead of running the engine; Status does the same with the nearest code. Finish is
	// the finish_reason of the answer, which has no tokens with "error". KVParams is the
	// hand-off in the answer of a prefill.
	Code, Finish, KVParams string

	// Echo answers 200 with exactly the request's body, at once.
	Echo bool
	// Tokens are the texts of the output tokens, all of them; OutputTokens
	// bounds their number (finish_reason "stop").
	Tokens       []string
	OutputTokens int
	// TokenSize pads every output token to that many bytes.
	TokenSize int
	// Events are written instead of the engine's events, byte for byte: neither
	// "data: " nor [DONE] is added.
	Events []string

	text string
	seen int // requests matched so far; guarded by Worker.mu
}

// String is the fault as ParseFault reads it, "" for one made in Go.
func (f *Fault) String() string {
	if f.text == "" {
		return "fault"
	}
	return f.text
}

// FaultHelp lists the keys that ParseFault reads.
const FaultHelp = `on=prefill|decode|regular   only workers of that role
path=/health                only paths with that prefix; without it generation routes
skip=N, count=N             skip the first N; then apply to N of them (0: all)
delay=2s                    between the request's body and the head of the answer; also
                            accept_delay, first_byte, event_delay (before each event but the first)
early_headers               send the head before the engine has run
keep_alive=1s, comment=TEXT comments while the engine is silent
status=503, body=TEXT       answer so instead of running; also body_size=N, early, header=Name:Value,
                            retry_after=N, content_type=TYPE
reset=POINT, after=N        reset the connection at a point: accept, request, body, headers, event (N events
                            are sent), inside (N events and half of the next are), end; close=POINT,
                            end=POINT and freeze=POINT likewise. reset=POINT is short for do=reset,at=POINT
write_size=N, write_pause=D write in pieces of N bytes, D apart
code=UNAVAILABLE            the status of a gRPC call; goaway=POINT and die=POINT send GOAWAY, and end the engine
                            but not its server; finish=error|abort|..., kv_params=TEXT; kind=complete-twice,
                            chunk-after-complete, no-complete, bad-index, bad-ids, huge-message (body_size=N)
kind=KIND                   garbage, truncated, chunk-line, huge-header, error-in-200, error-event,
                            events-for-json, json-for-events, eof, surplus, 1xx
echo                        answer 200 with the body of the request
token=TEXT, output_tokens=N the output; token_size=N pads each token to N bytes
event=TEXT                  write this instead of the engine's events
`

// ParseFault reads "key=value,key=value". The keys are on, path, skip, count,
// accept_delay, delay, first_byte, event_delay, early_headers, keep_alive,
// comment, status, body, body_size, early, header (Name:Value, repeatable),
// content_type, do, at, after, write_size, write_pause, kind, code, finish, kv_params, echo, token (one
// text, repeatable), output_tokens, token_size, event (repeatable), and the short forms
// retry_after=3 for the header, reset=headers for do=reset,at=headers, and the
// same for close, end, freeze, goaway and die. Durations are Go's ("100ms"), flags need no
// value. Use ParseFaultJSON for values with commas.
func ParseFault(s string) (Fault, error) {
	f := Fault{text: s}
	for _, pair := range strings.Split(s, ",") {
		pair = strings.TrimSpace(pair)
		if pair == "" {
			continue
		}
		k, v, ok := strings.Cut(pair, "=")
		if !ok {
			v = "true"
		}
		if err := f.set(k, v); err != nil {
			return Fault{}, err
		}
	}
	return f, nil
}

// ParseFaultJSON reads a JSON string in the form of ParseFault, or an object of
// the same keys, with arrays for the repeatable ones.
func ParseFaultJSON(b []byte) (Fault, error) {
	b = bytes.TrimSpace(b)
	if len(b) > 0 && b[0] == '"' {
		var s string
		if err := json.Unmarshal(b, &s); err != nil {
			return Fault{}, fmt.Errorf("cannot read fault: %w", err)
		}
		return ParseFault(s)
	}
	var m map[string]any
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&m); err != nil {
		return Fault{}, fmt.Errorf("cannot read fault: %w", err)
	}
	f := Fault{text: string(b)}
	if len(f.text) > 200 {
		f.text = f.text[:200]
	}
	for k, v := range m {
		list, ok := v.([]any)
		if !ok {
			list = []any{v}
		}
		for _, x := range list {
			if err := f.set(k, fmt.Sprint(x)); err != nil {
				return Fault{}, err
			}
		}
	}
	return f, nil
}

func (f *Fault) set(k, v string) (err error) {
	duration := func(d *time.Duration) {
		if *d, err = time.ParseDuration(v); err == nil && *d < 0 {
			err = fmt.Errorf("negative duration")
		}
	}
	number := func(n *int) {
		if *n, err = strconv.Atoi(v); err == nil && *n < 0 {
			err = fmt.Errorf("negative number")
		}
	}
	flag := func(b *bool) { *b, err = strconv.ParseBool(v) }
	header := func(name, value string) {
		if f.Header == nil {
			f.Header = make(http.Header)
		}
		f.Header.Add(strings.TrimSpace(name), strings.TrimSpace(value))
	}
	switch k {
	case "on":
		f.On = Role(v)
	case "path":
		f.Path = v
	case "skip":
		number(&f.Skip)
	case "count":
		number(&f.Count)
	case "accept_delay":
		duration(&f.AcceptDelay)
	case "delay":
		duration(&f.Delay)
	case "first_byte":
		duration(&f.FirstByte)
	case "event_delay":
		duration(&f.EventDelay)
	case "early_headers":
		flag(&f.EarlyHeaders)
	case "keep_alive":
		duration(&f.KeepAlive)
	case "comment":
		f.Comment = v
	case "status":
		if number(&f.Status); err == nil && (f.Status < 200 || f.Status > 599) {
			err = fmt.Errorf("want 200 to 599")
		}
	case "body":
		f.Body = v
	case "body_size":
		number(&f.BodySize)
	case "early":
		flag(&f.Early)
	case "header":
		name, value, ok := strings.Cut(v, ":")
		if !ok {
			err = fmt.Errorf("want Name:Value")
		}
		header(name, value)
	case "retry_after":
		header("Retry-After", v)
	case "content_type":
		f.ContentType = v
	case "do":
		f.Do = Action(v)
	case "at":
		f.At = Point(v)
	case "after":
		number(&f.After)
	case "code":
		f.Code = strings.ToUpper(v)
	case "finish":
		f.Finish = v
	case "kv_params":
		f.KVParams = v
	case "reset", "close", "end", "freeze", "goaway", "die":
		f.Do = Action(k)
		if v != "true" {
			f.At = Point(v)
		}
	case "write_size":
		number(&f.WriteSize)
	case "write_pause":
		duration(&f.WritePause)
	case "kind":
		f.Kind = Kind(v)
	case "echo":
		flag(&f.Echo)
	case "token", "tokens":
		f.Tokens = append(f.Tokens, v)
	case "output_tokens":
		number(&f.OutputTokens)
	case "token_size":
		number(&f.TokenSize)
	case "event", "events":
		f.Events = append(f.Events, v)
	default:
		err = fmt.Errorf("no such key")
	}
	if err == nil {
		err = f.check()
	}
	if err != nil {
		return fmt.Errorf("cannot read fault key %s=%q: %w", k, v, err)
	}
	return nil
}

func (f *Fault) check() error {
	switch f.On {
	case "", Prefill, Decode, Regular:
	default:
		return fmt.Errorf("no such role")
	}
	switch f.Do {
	case "", Reset, Close, End, Freeze, GoAway, Die:
	default:
		return fmt.Errorf("no such action")
	}
	switch f.At {
	case "", AtAccept, AtRequest, AtBody, AtHeaders, AtEvent, AtInside, AtEnd:
	default:
		return fmt.Errorf("no such point")
	}
	switch f.Kind {
	case "", Garbage, Truncated, ChunkLine, HugeHeader, ErrorInside200, ErrorEvent, EventsForJSON,
		JSONForEvents, EOFDelimited, Surplus, Informational,
		CompleteTwice, ChunkAfterComplete, NoComplete, BadIndex, BadIDs, HugeMessage:
	default:
		return fmt.Errorf("no such kind")
	}
	if f.Code != "" && f.grpcCode() == codes.OK {
		return fmt.Errorf("no such code")
	}
	return nil
}

// grpcCode is the status that a gRPC call is answered with, OK if it runs.
func (f *Fault) grpcCode() codes.Code {
	if f.Code == "" {
		return codeOf(max(f.Status, 200))
	}
	var c codes.Code
	if c.UnmarshalJSON([]byte(`"`+f.Code+`"`)) != nil {
		return codes.OK
	}
	return c
}

// does reports whether the action is done at p; an action without a point is done
// once the body is read.
func (f *Fault) does(p Point) bool {
	if f == nil || f.Do == "" {
		return false
	}
	at := f.At
	if at == "" {
		at = AtBody
	}
	return at == p
}

// SetFault replaces all faults of the worker by one.
func (w *Worker) SetFault(f Fault) {
	w.mu.Lock()
	w.faults = []*Fault{&f}
	w.mu.Unlock()
}

// AddFault adds one; of several that match a request the first applies.
func (w *Worker) AddFault(f Fault) {
	w.mu.Lock()
	w.faults = append(w.faults, &f)
	w.mu.Unlock()
}

// ClearFaults removes all faults of the worker.
func (w *Worker) ClearFaults() {
	w.mu.Lock()
	w.faults = nil
	w.mu.Unlock()
}

// pickFault finds the first fault that matches and counts it.
func (w *Worker) pickFault(match func(*Fault) bool) *Fault {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, f := range w.faults {
		if (f.On != "" && f.On != w.role) || !match(f) {
			continue
		}
		f.seen++
		if f.seen <= f.Skip || (f.Count > 0 && f.seen > f.Skip+f.Count) {
			continue
		}
		return f
	}
	return nil
}

// faultFor finds the worker's fault for a request.
func (w *Worker) faultFor(path string, generation bool) *Fault {
	return w.pickFault(func(f *Fault) bool {
		if f.AcceptDelay > 0 || f.At == AtAccept {
			return false
		}
		if f.Path == "" {
			return generation
		}
		return strings.HasPrefix(path, f.Path)
	})
}
