package openai

import (
	"fmt"
	"strings"
	"testing"
)

// summary is what a scanner found, for comparison.
func summary(e *EventScanner) string {
	return fmt.Sprintf("events=%d data=%d comments=%d done=%t finished=%t errors=%d toolong=%d usage=%v/%t boundary=%t last=%q",
		e.Events, e.DataEvents, e.Comments, e.Done, e.Finished, e.Errors, e.TooLong, e.Usage, e.HasUsage, e.AtBoundary(), e.LastError)
}

func scanWhole(stream string) *EventScanner {
	e := new(EventScanner)
	e.Feed([]byte(stream))
	return e
}

// feedBytewise feeds one byte at a time, from a buffer that is overwritten, as a
// relay's is.
func feedBytewise(stream string) *EventScanner {
	e := new(EventScanner)
	buf := make([]byte, 1)
	for i := range len(stream) {
		buf[0] = stream[i]
		e.Feed(buf)
		buf[0] = '#'
	}
	return e
}

func TestEventScanner(t *testing.T) {
	for _, c := range []struct {
		name, stream                   string
		events, data, comments, errors int
		done, finished, boundary       bool
	}{
		{"nothing", "", 0, 0, 0, 0, false, false, true},
		{"one", "data: {}\n\n", 1, 1, 0, 0, false, false, true},
		{"unfinished event", "data: {}\n", 0, 0, 0, 0, false, false, false},
		{"unfinished line", "data: {}", 0, 0, 0, 0, false, false, false},
		{"unfinished name", "da", 0, 0, 0, 0, false, false, false},
		{"done", "data: {}\n\ndata: [DONE]\n\n", 2, 1, 0, 0, true, true, true},
		{"done without space", "data:[DONE]\n\n", 1, 0, 0, 0, true, true, true},
		{"done not ended", "data: [DONE]\n", 0, 0, 0, 0, false, false, false},
		{"done inside text", "data: {\"text\":\"data: [DONE]\"}\n\n", 1, 1, 0, 0, false, false, true},
		{"done inside a line", "x data: [DONE]\n\n", 0, 0, 0, 0, false, false, true},
		{"CRLF", "data: {}\r\n\r\ndata: [DONE]\r\n\r\n", 2, 1, 0, 0, true, true, true},
		{"CR", "data: {}\r\rdata: [DONE]\r\r", 2, 1, 0, 0, true, true, true},
		{"mixed ends", "data: {}\r\n\ndata: [DONE]\n\r", 2, 1, 0, 0, true, true, true},
		{"comment", ": ping\n\n", 0, 0, 1, 0, false, false, true},
		{"comment without blank line", ": ping\n", 0, 0, 1, 0, false, false, true},
		{"cut comment", ": pi", 0, 0, 0, 0, false, false, false},
		{"comment in an event", "data: 1\n: x\ndata: 2\n\n", 1, 1, 1, 0, false, false, true},
		{"blank lines", "\n\n\n", 0, 0, 0, 0, false, false, true},
		{"event without data", "event: error\n\n", 0, 0, 0, 0, false, false, true},
		{"named error", "event: error\ndata: {\"type\":\"error\"}\n\n", 1, 0, 0, 1, false, false, true},
		{"name does not last", "event: error\n\ndata: {}\n\n", 1, 1, 0, 0, false, false, true},
		{"nested error", "data: {\"error\":{\"message\":\"x\"}}\n\n", 1, 0, 0, 1, false, false, true},
		{"error in text form", "data: {\"error\":\"boom\"}\n\n", 1, 0, 0, 1, false, false, true},
		{"flat error", "data: {\"object\":\"error\",\"message\":\"x\"}\n\n", 1, 0, 0, 1, false, false, true},
		{"error null", "data: {\"error\":null}\n\n", 1, 1, 0, 0, false, false, true},
		{"error deeper", "data: {\"a\":{\"error\":{}}}\n\n", 1, 1, 0, 0, false, false, true},
		{"error in text", "data: {\"a\":\"\\\"error\\\":{}\"}\n\n", 1, 1, 0, 0, false, false, true},
		{"error over two lines", "data: {\"error\":\ndata: {}}\n\n", 1, 0, 0, 1, false, false, true},
		{"broken JSON with the word", "data: {\"error\"\n\n", 1, 1, 0, 0, false, false, true},
		{"messages API end", "event: message_stop\ndata: {}\n\n", 1, 1, 0, 0, false, true, true},
		{"responses API end", "event: response.completed\ndata: {}\n\n", 1, 1, 0, 0, false, true, true},
		{"byte order mark", "\xef\xbb\xbfdata: [DONE]\n\n", 1, 0, 0, 0, true, true, true},
		{"id and retry", "id: 5\nretry: 10\ndata: {}\n\n", 1, 1, 0, 0, false, false, true},
	} {
		for how, e := range map[string]*EventScanner{"whole": scanWhole(c.stream), "bytewise": feedBytewise(c.stream)} {
			if e.Events != c.events || e.DataEvents != c.data || e.Comments != c.comments || e.Errors != c.errors ||
				e.Done != c.done || e.Finished != c.finished || e.AtBoundary() != c.boundary {
				t.Errorf("%s, %s: %s", c.name, how, summary(e))
			}
		}
	}
}

func TestEventScannerBoundsWhatItKeeps(t *testing.T) {
	e := &EventScanner{MaxEventBytes: 64}
	long := `data: {"error":{"message":"` + strings.Repeat("x", 200) + `"}}` + "\n\n"
	for i := range len(long) {
		e.Feed([]byte(long[i : i+1]))
		if cap(e.line) > 256 || cap(e.buf) > 256 {
			t.Fatalf("it keeps %d and %d bytes", cap(e.line), cap(e.buf))
		}
	}
	if e.TooLong != 1 || e.Events != 1 || !e.AtBoundary() {
		t.Errorf("%s", summary(e))
	}
	// Many short lines of one event are bounded as well.
	for range 100 {
		e.Feed([]byte("data: 0123456789\n"))
	}
	if cap(e.buf) > 256 {
		t.Errorf("it keeps %d bytes", cap(e.buf))
	}
	e.Feed([]byte("\ndata: [DONE]\n\n"))
	if e.TooLong != 2 || !e.Done {
		t.Errorf("%s", summary(e))
	}
	// A long line in one piece is scanned without being copied.
	e.Reset()
	e.Feed([]byte(long))
	if e.TooLong != 0 || e.Errors != 1 {
		t.Errorf("%s", summary(e))
	}
}

// The last event of a stream of the Responses API repeats the request's instructions
// and the whole answer: how it ended is still read.
func TestLongEventsAreReadForHowTheAnswerEnded(t *testing.T) {
	long := strings.Repeat("x", 3000)
	response := "event: response.completed\ndata: {\"type\":\"response.completed\",\"response\":{\"object\":\"response\",\"instructions\":\"" + long + "\",\"status\":\"%s\",\"usage\":{\"input_tokens\":7,\"output_tokens\":3}}}\n\n"
	for _, size := range []int{1, 7, 1000} {
		feed := func(stream string) *EventScanner {
			e := &EventScanner{MaxEventBytes: 1024}
			for at := 0; at < len(stream); at += size {
				e.Feed([]byte(stream[at:min(at+size, len(stream))]))
			}
			return e
		}
		if e := feed(fmt.Sprintf(response, "failed")); !e.Aborted || e.Abort.Status != 500 {
			t.Errorf("pieces of %d: a failed one: %s", size, summary(e))
		}
		if e := feed(fmt.Sprintf(response, "completed")); e.Aborted || !e.Finished || e.DataEvents != 1 || e.Usage != (Usage{7, 3, -1}) || e.TooLong != 1 {
			t.Errorf("pieces of %d: a good one: %s", size, summary(e))
		}
		if e := feed("data: {\"error\":{\"message\":\"no\",\"x\":\"" + long + long + "\"}}\n\n"); e.Errors != 1 || EventErrorMessage(e.LastError) != "no" {
			t.Errorf("pieces of %d: an error: %s", size, summary(e))
		}
		if e := feed("id: " + long + "\ndata: {}\n\n"); e.DataEvents != 1 || e.TooLong != 0 {
			t.Errorf("pieces of %d: another field: %s", size, summary(e))
		}
	}
}

func TestEventScannerAllocatesNothing(t *testing.T) {
	event := []byte("data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":{\"prompt_tokens\":1}}\n\n")
	e := scanWhole(string(event))
	if n := testing.AllocsPerRun(100, func() { e.Feed(event) }); n > 0 {
		t.Errorf("%v allocations for an event", n)
	}
	if e.line != nil || e.buf != nil {
		t.Error("whole events were copied")
	}
}

func TestReadUsage(t *testing.T) {
	for json, want := range map[string]Usage{
		`{"usage":{"prompt_tokens":10,"completion_tokens":5,"total_tokens":15}}`:                                        {10, 5, -1},
		`{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":3}}}`:                                    {10, -1, 3},
		`{"usage":null,"choices":[{"usage":{"prompt_tokens":1}}]}`:                                                      {-1, -1, -1},
		`{"text":"x","meta_info":{"prompt_tokens":7,"completion_tokens":2,"cached_tokens":0}}`:                          {7, 2, 0},
		`[{"meta_info":{"prompt_tokens":7,"completion_tokens":2}},{"meta_info":{"prompt_tokens":1}},4]`:                 {8, 2, -1},
		`{"type":"message_start","message":{"usage":{"input_tokens":9,"output_tokens":1,"cache_read_input_tokens":4}}}`: {13, 1, 4},
		// As vLLM 0.32 tells of a prompt of 331 tokens, new and again, and at the beginning of a stream.
		`{"usage":{"input_tokens":11,"output_tokens":4,"cache_creation_input_tokens":320,"cache_read_input_tokens":0}}`: {331, 4, 0},
		`{"usage":{"cache_read_input_tokens":320,"cache_creation_input_tokens":0,"output_tokens":4,"input_tokens":11}}`: {331, 4, 320},
		`{"message":{"usage":{"input_tokens":331,"output_tokens":0}}}`:                                                  {331, 0, -1},
		`{"response":{"usage":{"input_tokens":331,"input_tokens_details":{"cached_tokens":320},"output_tokens":4}}}`:    {331, 4, 320},
		`{"usage":{"input_tokens":9223372036854775807,"cache_read_input_tokens":1}}`:                                    {-1, -1, 1},
		`{"usage":{"prompt_tokens":1.5,"completion_tokens":-3,"cached_tokens":"7"}}`:                                    {-1, -1, -1},
		`{"usage":{"prompt_tokens":4294967297,"completion_tokens":4294967296,"cached_tokens":9223372036854775807}}`:     {-1, 1 << 32, -1},
		``: {-1, -1, -1}, `[`: {-1, -1, -1}, `{`: {-1, -1, -1}, `7`: {-1, -1, -1},
	} {
		got, ok := ReadUsage([]byte(json))
		if got != want || ok != (want != Usage{-1, -1, -1}) {
			t.Errorf("%s: %v %t, want %v", json, got, ok, want)
		}
	}
	nested := strings.Repeat(`{"usage":`, 1<<16) + strings.Repeat(`{"prompt_tokens_details":`, 1<<16)
	ReadUsage([]byte(nested)) // must come back
}

// An event with an empty list of choices only carries the usage.
func TestEventsWithUsageOnly(t *testing.T) {
	usage := `"usage":{"prompt_tokens":3,"completion_tokens":2,"total_tokens":5}`
	for _, choices := range []string{`"choices":[],`, `"choices":null,`, ``} {
		event := "data: {" + choices + usage + "}\n\n"
		for _, stream := range []string{"data: {}\n\n" + event + "data: [DONE]\n\n", event + "data: {}\n\ndata: [DONE]\n\n"} {
			e := scanWhole(stream)
			if !e.Done || e.Errors != 0 || e.Usage != (Usage{3, 2, -1}) || !e.HasUsage {
				t.Errorf("%q: %s", stream, summary(e))
			}
		}
	}
}

// An event that is cut across reads keeps its usage: a cut at every place, and single
// bytes, give the same result as the whole stream.
func TestEventsAreTheSameHoweverTheStreamIsSplit(t *testing.T) {
	stream := ": hi\r\ndata: {\"choices\":[{\"delta\":{\"content\":\"x\"}}],\"usage\":null}\r\n\r\nevent: x\ndata: {\"a\":\ndata: 1}\n\n" +
		"data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":2}}\n\ndata: [DONE]\r\r"
	want := summary(scanWhole(stream))
	for i := range len(stream) + 1 {
		e := new(EventScanner)
		e.Feed([]byte(stream[:i]))
		e.Feed([]byte(stream[i:]))
		if got := summary(e); got != want {
			t.Errorf("cut at %d: %s, want %s", i, got, want)
		}
	}
	if got := summary(feedBytewise(stream)); got != want {
		t.Errorf("bytewise: %s, want %s", got, want)
	}
}

// A character that is cut across reads stays whole in what the scanner keeps of an error.
func TestCharactersSplitBetweenReadsStayWhole(t *testing.T) {
	data := `{"error":{"message":"引擎失败 ошибка 🙂"}}`
	e := feedBytewise("data: " + data + "\n\n")
	if string(e.LastError) != data {
		t.Errorf("kept %q", e.LastError)
	}
}

// Keep-alive comments are neither data nor the first token.
func TestCommentsAreNotData(t *testing.T) {
	e := scanWhole(": processing\n\n: processing\n\n")
	if e.DataEvents != 0 || e.Events != 0 || e.Comments != 2 || !e.AtBoundary() {
		t.Errorf("%s", summary(e))
	}
	e.Feed([]byte("data: {}\n\n: processing\n\ndata: {}\n\n"))
	if e.DataEvents != 2 || e.Comments != 3 {
		t.Errorf("%s", summary(e))
	}
}

// The router's own keep-alive must not be sent inside an event: AtBoundary says at each
// place of a stream whether one may be sent.
func TestKeepalivesAreSentBetweenEventsOnly(t *testing.T) {
	stream := "id: 1\ndata: {}\n\nid: 2\r\ndata: {}\r\n\r\n"
	want := scanWhole(stream)
	e := new(EventScanner)
	for i := range len(stream) {
		if e.AtBoundary() {
			with := stream[:i] + ": keepalive\n" + stream[i:]
			if got := scanWhole(with); got.Events != want.Events || got.DataEvents != want.DataEvents {
				t.Errorf("a comment at %d changes the stream: %s", i, summary(got))
			}
		}
		e.Feed([]byte(stream[i : i+1]))
	}
	if !e.AtBoundary() {
		t.Error("no boundary at the end")
	}
}

// The end marker is not parsed as JSON.
func TestEndMarkerIsNoError(t *testing.T) {
	e := scanWhole("data: {\"usage\":{\"prompt_tokens\":1}}\n\ndata: [DONE]\n\n")
	if e.Errors != 0 || !e.Done || !e.HasUsage {
		t.Errorf("%s", summary(e))
	}
}

// A client must not take a stream that the engine cut for a complete one: wherever it is
// cut, the router's addition is read as an error event, without end marker.
func TestCutStreamsEndWithAnErrorEvent(t *testing.T) {
	for _, stream := range []string{
		"data: {\"a\":1}\n\ndata: {\"b\":2}\n\n", "data: {\"a\":1}\r\n\r\ndata: {\"b\":2}\r\n\r\n", "data: {\"a\":1}\r\rdata: {\"b\":2}\r\r",
		"event: error_free\ndata: {\"a\":1}\ndata: {\"b\":2}\n\n: comment\n\n",
	} {
		for _, shape := range []Shape{ShapeOpenAI, ShapeAnthropic} {
			for cut := range len(stream) + 1 {
				e := scanWhole(stream[:cut])
				tail := e.AppendClose(nil)
				if e.AtBoundary() && len(tail) > 0 {
					t.Fatalf("cut at %d: %q added at a boundary", cut, tail)
				}
				tail = UpstreamFailed("decode", "the stream broke off", nil).AppendEvent(tail, shape)
				got := scanWhole(stream[:cut] + string(tail))
				if got.Errors != 1 || got.Done || got.Finished || !got.AtBoundary() {
					t.Errorf("%q cut at %d and closed with %q: %s", stream, cut, tail, summary(got))
				}
				if !strings.Contains(string(got.LastError), "the stream broke off") {
					t.Errorf("%q cut at %d: last error %q", stream, cut, got.LastError)
				}
			}
		}
	}
}

// An error as the first event of a 200 stream is no success.
func TestErrorAsFirstEvent(t *testing.T) {
	e := feedBytewise("data: {\"error\":{\"object\":\"error\",\"message\":\"no\",\"code\":400}}\n\ndata: [DONE]\n\n")
	if e.Errors != 1 || e.DataEvents != 0 || !e.Done {
		t.Errorf("%s", summary(e))
	}
}
