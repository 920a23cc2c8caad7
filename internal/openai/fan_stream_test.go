package openai

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"
)

// part is a piece of one copy's stream.
type part struct {
	copy  int
	bytes string
}

// runFan feeds the parts, each in pieces of at most size bytes from a buffer that is
// overwritten, as a relay's is, and checks that out gets whole events. Byte by byte, the
// known beginning of the last event is never used.
func runFan(t testing.TB, m *StreamMerger, parts []part, size int) (string, error) {
	t.Helper()
	var all strings.Builder
	calls := 0
	out := func(b []byte) {
		calls++
		if len(b) == 0 || b[len(b)-1] != '\n' {
			t.Errorf("%q came out", b)
		}
		all.Write(b)
		if s := scanWhole(all.String()); !s.AtBoundary() {
			t.Errorf("inside an event after %q", all.String())
		}
	}
	for _, p := range parts {
		for rest := p.bytes; len(rest) > 0; {
			n := min(size, len(rest))
			buf := []byte(rest[:n])
			calls = 0
			if size == 1 {
				m.sources[p.copy].known = nil
			}
			err := m.Feed(p.copy, buf, out)
			if calls > 1 {
				t.Errorf("%d calls for one piece", calls)
			}
			for i := range buf {
				buf[i] = '#'
			}
			if err != nil {
				return all.String(), err
			}
			rest = rest[n:]
		}
	}
	return all.String(), nil
}

func chunk(id string, index int, text string) string {
	return `data: {"id":"` + id + `","created":17` + strconv.Itoa(len(id)) + `,"choices":[{"index":` + strconv.Itoa(index) + `,"delta":{"content":"` + text + `","tool_calls":[{"index":0}]},"finish_reason":null}]}` + "\n\n"
}

func TestStreamMerger(t *testing.T) {
	const done = "data: [DONE]\n\n"
	usage := func(id string, prompt, completion int) string {
		return fmt.Sprintf(`data: {"id":"%s","created":1,"choices":[],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}`+"\n\n", id, prompt, prompt+completion, completion)
	}
	ab := Fan{Copies: 2, Prompts: 1, Usage: true}
	for _, c := range []struct {
		name  string
		fan   Fan
		parts []part
		want  string
	}{
		{"one id, indices, one end", ab, []part{{0, chunk("a", 0, "x")}, {1, chunk("bb", 0, "y")}, {1, done}, {0, chunk("a", 0, "z")}, {0, done}},
			chunk("a", 0, "x") + chunk("a", 1, "y") + chunk("a", 0, "z") + done},
		{"the later copy first", ab, []part{{1, chunk("bb", 0, "y")}, {0, chunk("a", 0, "x")}, {0, done}, {1, done}},
			chunk("bb", 1, "y") + chunk("bb", 0, "x") + done},
		{"batch", Fan{Copies: 3, Prompts: 2}, []part{{2, chunk("a", 1, "x")}, {1, chunk("a", 0, "y")}, {0, chunk("a", 1, "z")}},
			chunk("a", 5, "x") + chunk("a", 1, "y") + chunk("a", 3, "z")},
		{"several choices in an event", Fan{Copies: 2, Prompts: 2}, []part{{1, `data: {"choices":[{"index":1,"a":0.10},{"b":[], "index" : 0 }],"x":1e400}` + "\n\n"}},
			`data: {"choices":[{"index":3,"a":0.10},{"b":[], "index" : 1 }],"x":1e400}` + "\n\n"},
		{"usage", ab, []part{{1, chunk("bb", 0, "y") + usage("bb", 5, 7) + done}, {0, chunk("a", 0, "x") + usage("a", 5, 2) + done}},
			chunk("bb", 1, "y") + chunk("bb", 0, "x") + strings.Replace(usage("bb", 5, 9), `"created":1,`, `"created":172,`, 1) + done},
		{"usage not asked for", Fan{Copies: 2, Prompts: 1}, []part{{0, usage("a", 5, 2) + done}, {1, usage("a", 5, 2) + done}}, done},
		{"usage from one copy only", ab, []part{{0, done}, {1, usage("a", 5, 2) + done}}, usage("a", 5, 2) + done},
		{"usage told twice", ab, []part{{0, usage("a", 4, 2) + usage("a", 5, 3) + done}, {1, usage("a", 5, 1) + done}}, usage("a", 5, 4) + done},
		{"the last event with usage tells it", ab, []part{{0, `data: {"usage":{},"x":1}` + "\n\n" + `data: {"x":2.0,"usage":{"completion_tokens":3}}` + "\n\n" + done}, {1, `data: {"x":3,"usage":{"completion_tokens":4}}` + "\n\n" + done}},
			`data: {"x":2.0,"usage":{"completion_tokens":7}}` + "\n\n" + done},
		{"usage on every event passes", ab, []part{{1, `data: {"choices":[{"index":0}],"usage":{"completion_tokens":1}}` + "\n\n"}},
			`data: {"choices":[{"index":1}],"usage":{"completion_tokens":1}}` + "\n\n"},
		{"usage null passes", ab, []part{{1, `data: {"choices":[],"usage":null}` + "\n\n"}}, `data: {"choices":[],"usage":null}` + "\n\n"},
		{"line ends", ab, []part{{0, "data: {}\r\n\r\ndata: {}\r\rdata: {}\n\r\n\r"}, {1, "data: {}\r\r\ndata: {}\n\n"}}, strings.Repeat("data: {}\n\n", 5)},
		{"no space, byte order mark", ab, []part{{0, "\xef\xbb\xbfdata:{}\n\ndata:[DONE]\n\n"}, {1, "data:  [DONE] \n\n"}}, "data: {}\n\n" + done},
		{"data over lines", ab, []part{{1, "data: {\"choices\":\ndata: [{\"index\":\ndata:0}]\ndata\ndata: }\n\n"}}, "data: {\"choices\": [{\"index\": 1}]  }\n\n"},
		{"other lines", ab, []part{{1, "id: 5\ndata: {}\nevent: x\n\n"}}, "id: 5\nevent: x\ndata: {}\n\n"},
		{"events without data", ab, []part{{1, "\n\nevent: error\n\nid: 1\n\ndata:\n\ndata: \n\ndata: {}\n\n"}}, "data: {}\n\n"},
		{"after the end", ab, []part{{0, done + chunk("a", 0, "x") + ": late\n\n"}, {0, "data: {\"error\":{}}\n\n"}, {1, done}, {1, done}}, done},
		{"an id that is none", ab, []part{{0, `data: {"id":null,"created":"x"}` + "\n\n"}, {1, `data: {"id":"b","created":2}` + "\n\n"}, {0, `data: {"id":"c","created":3,"id":7}` + "\n\n"}},
			`data: {"id":null,"created":"x"}` + "\n\n" + `data: {"id":"b","created":2}` + "\n\n" + `data: {"id":"b","created":2,"id":7}` + "\n\n"},
		{"error null", ab, []part{{0, `data: {"error":null}` + "\n\n"}}, `data: {"error":null}` + "\n\n"},
		{"error in a choice passes", ab, []part{{0, `data: {"choices":[{"index":0,"error":{"message":"x"}}]}` + "\n\n"}}, `data: {"choices":[{"index":0,"error":{"message":"x"}}]}` + "\n\n"},
		{"unfinished", ab, []part{{0, "data: {}\n"}, {1, "data: {}"}}, ""},
	} {
		for _, size := range []int{1, 2, 3, 7, 1 << 20} {
			m := c.fan.Stream(0)
			got, err := runFan(t, m, c.parts, size)
			if err != nil || got != c.want {
				t.Errorf("%s in pieces of %d: %v\n got %q\nwant %q", c.name, size, err, got, c.want)
			}
			if ended := strings.HasSuffix(got, done); ended != m.Done() {
				t.Errorf("%s: done is %t", c.name, m.Done())
			}
		}
	}
}

func TestStreamMergerFaults(t *testing.T) {
	first := chunk("a", 0, "x")
	for _, c := range []struct{ name, bad, reason string }{
		{"not JSON", "data: {\"a\":tru}\n\n", "not valid JSON"},
		{"cut JSON", "data: {\"a\":1\n\n", "not valid JSON"},
		{"a string over lines", "data: {\"a\":\"x\ndata: y\"}\n\n", "not valid JSON"},
		{"more", "data: {} {}\n\n", "more data"},
		{"text", "data: hello\n\n", "neither"},
		{"list", "data: []\n\n", "neither"},
		{"no index", "data: {\"choices\":[{}]}\n\n", "no index below 1"},
		{"index too high", "data: {\"choices\":[{\"index\":1}]}\n\n", "no index below 1"},
		{"choice is none", "data: {\"choices\":[null]}\n\n", "no index below 1"},
		{"long line", "data: " + strings.Repeat("x", 300), "longer than 200"},
		{"long comment", ":" + strings.Repeat("x", 300) + "\n", "longer than 200"},
		{"many lines", strings.Repeat("data: 12345678\n", 40), "longer than 200"},
		{"many other lines", strings.Repeat("id: 12345678\n", 40), "longer than 200"},
	} {
		for _, size := range []int{1, 5, 1 << 20} {
			m := Fan{Copies: 2, Prompts: 1}.Stream(200)
			got, err := runFan(t, m, []part{{0, first}, {1, "data: {}\n\n" + c.bad}}, size)
			var e *FanError
			if !errors.As(err, &e) || e.Copy != 1 || e.FromEngine || !strings.Contains(e.Reason, c.reason) {
				t.Errorf("%s: %v", c.name, err)
			}
			if got != first+"data: {}\n\n" {
				t.Errorf("%s: %q came out", c.name, got)
			}
			if again := m.Feed(0, []byte(first), func([]byte) { t.Error("more came out") }); again != err {
				t.Errorf("%s: then %v", c.name, again)
			}
			if m.End(0) != err || m.Done() {
				t.Errorf("%s: ended well", c.name)
			}
		}
	}
}

// An event with the same beginning as the last one is not parsed from its beginning.
func TestStreamMergerReusesAKnownBeginning(t *testing.T) {
	begin := `data: {"id":"bb","choices":[{"index":0`
	for _, c := range []struct{ rest, want string }{
		{`}]}`, `}]}`},
		{`,"x":{"index":0}},{"index":1}],"id":"c"}`, `,"x":{"index":0}},{"index":3}],"id":"a"}`},
		{` }]}`, ` }]}`},
		{`,"index":0}]}`, ""},
		{`,"\u0069ndex":0}]}`, ""},
		{`0}]}`, ""},
		{`.0}]}`, ""},
		{`,}]}`, ""},
		{`,"x":1`, ""},
		{`}],"error":"x"}`, ""},
		{`}]}}`, ""},
	} {
		for _, size := range []int{1, 1 << 20} {
			m := Fan{Copies: 2, Prompts: 2}.Stream(0)
			got, err := runFan(t, m, []part{{0, `data: {"id":"a"}` + "\n\n"}, {1, begin + "}]}\n\n" + begin + c.rest + "\n\n"}}, size)
			known := strings.Replace(strings.Replace(begin, "bb", "a", 1), ":0", ":1", 1)
			want := `data: {"id":"a"}` + "\n\n" + known + "}]}\n\n"
			if c.want != "" {
				want += known + c.want + "\n\n"
			}
			if got != want || (err != nil) != (c.want == "") {
				t.Errorf("%s in pieces of %d: %v\n got %q\nwant %q", c.rest, size, err, got, want)
			}
		}
	}
}

func TestStreamMergerReportsErrors(t *testing.T) {
	for _, c := range []struct {
		event   string
		status  int
		message string
	}{
		{`data: {"error":{"message":"transfer failed","type":"x","code":500,"retryable":false}}`, 500, "transfer failed"},
		{`data: {"object":"error","message":"flat","code":400}`, 400, "flat"},
		{`data: {"choices":[{"index":0}],"error":"text"}`, 0, "text"},
		{"event: error\ndata: {\"message\":\"named\"}", 0, ""},
		{"event: error\ndata: oh no", 0, ""},
	} {
		m := Fan{Copies: 3, Prompts: 1}.Stream(0)
		got, err := runFan(t, m, []part{{0, chunk("a", 0, "x")}, {2, c.event + "\n\ndata: [DONE]\n\n"}}, 4)
		var e *FanError
		if !errors.As(err, &e) || e.Copy != 2 || !e.FromEngine || e.Status != c.status || e.Message != c.message || len(e.Data) == 0 {
			t.Errorf("%s: %v, %+v", c.event, err, e)
		}
		if got != chunk("a", 0, "x") {
			t.Errorf("%s: %q came out", c.event, got)
		}
	}
}

func TestStreamMergerEnd(t *testing.T) {
	m := Fan{Copies: 2, Prompts: 1}.Stream(0)
	if _, err := runFan(t, m, []part{{0, "data: [DONE]\n\n"}, {1, "data: [DONE]\n"}}, 100); err != nil {
		t.Fatal(err)
	}
	if err := m.End(0); err != nil || !m.sources[0].done || m.sources[1].done || m.Done() {
		t.Error(err)
	}
	var e *FanError
	if err := m.End(1); !errors.As(err, &e) || e.Copy != 1 || m.Done() {
		t.Error(err)
	}
}

// A usage-only event may have an empty list of choices, or none.
func TestMergedUsageOnlyEvents(t *testing.T) {
	for _, choices := range []string{`"choices":[],`, `"choices":null,`, ``} {
		event := `data: {` + choices + `"usage":{"prompt_tokens":1,"completion_tokens":2}}` + "\n\n"
		body := `data: {` + choices + `"x":1}` + "\n\n" + event + "data: [DONE]\n\n"
		got, err := runFan(t, Fan{Copies: 2, Prompts: 1, Usage: true}.Stream(0), []part{{0, body}, {1, body}}, 9)
		want := strings.Repeat(`data: {`+choices+`"x":1}`+"\n\n", 2) + strings.Replace(event, ":2}", ":4}", 1) + "data: [DONE]\n\n"
		if err != nil || got != want {
			t.Errorf("%v\n got %q\nwant %q", err, got, want)
		}
	}
}

// An event that is cut across reads keeps its usage.
func TestMergedUsageAcrossReads(t *testing.T) {
	event := `data: {"choices":[],"usage":{"prompt_tokens":11,"total_tokens":33,"completion_tokens":22}}` + "\n\ndata: [DONE]\n\n"
	for cut := 1; cut < len(event); cut++ {
		got, err := runFan(t, Fan{Copies: 2, Prompts: 1, Usage: true}.Stream(0), []part{{0, event[:cut]}, {1, event}, {0, event[cut:]}}, 1000)
		if want := strings.NewReplacer("33", "55", "22", "44").Replace(event); err != nil || got != want {
			t.Fatalf("cut at %d: %v %q", cut, err, got)
		}
	}
}

// A multi-byte character that is cut across reads stays whole.
func TestMergeKeepsCutCharacters(t *testing.T) {
	text := "你好, Привет, 🙂‍↔️"
	got, err := runFan(t, Fan{Copies: 2, Prompts: 1}.Stream(0), []part{{0, chunk("a", 0, text)}, {1, chunk("a", 0, text)}}, 1)
	if want := chunk("a", 0, text) + chunk("a", 1, text); err != nil || got != want {
		t.Errorf("%v %q", err, got)
	}
}

// Comments sent as keep-alive are not data.
func TestMergePassesComments(t *testing.T) {
	got, err := runFan(t, Fan{Copies: 2, Prompts: 1}.Stream(0), []part{{0, ": processing\n\n"}, {1, ":\r\n"}, {0, "data: {}\n: mid\ndata: \n\n"}}, 1)
	if want := ": processing\n:\n: mid\ndata: {} \n\n"; err != nil || got != want {
		t.Errorf("%v %q", err, got)
	}
}

// A keep-alive comment with a blank line must not become an empty event, nor come out
// inside another copy's event.
func TestMergedCommentsMakeNoEvent(t *testing.T) {
	got, err := runFan(t, Fan{Copies: 2, Prompts: 1}.Stream(0), []part{{0, "id: 1\ndata: {\"a\":"}, {1, ": ping\n\n"}, {0, "1}\n\n"}, {1, ": ping\n\n"}}, 3)
	if want := ": ping\nid: 1\ndata: {\"a\":1}\n\n: ping\n"; err != nil || got != want {
		t.Errorf("%v %q", err, got)
	}
}

// The end marker is not parsed as JSON.
func TestEndMarkerIsNoJSON(t *testing.T) {
	m := Fan{Copies: 2, Prompts: 1}.Stream(0)
	got, err := runFan(t, m, []part{{0, "data: [DONE]\n\n"}, {1, "data: [DONE]\n\n"}}, 1)
	if err != nil || got != "data: [DONE]\n\n" || !m.Done() || m.End(0) != nil || m.End(1) != nil {
		t.Errorf("%v %q", err, got)
	}
}

// With n > 1 each choice gets one finish reason.
func TestOneFinishForEachChoice(t *testing.T) {
	finish := func(index int, reason string) string {
		return fmt.Sprintf(`data: {"choices":[{"index":%d,"delta":{},"finish_reason":"%s"}]}`+"\n\n", index, reason)
	}
	usage := `data: {"choices":[],"usage":{"prompt_tokens":1,"total_tokens":2,"completion_tokens":1}}` + "\n\n"
	const done = "data: [DONE]\n\n"
	got, err := runFan(t, Fan{Copies: 3, Prompts: 1, Usage: true}.Stream(0), []part{
		{2, finish(0, "tool_calls") + usage + done}, {0, chunk("a", 0, "x") + finish(0, "stop") + usage}, {1, finish(0, "length") + usage + done}, {0, done}}, 5)
	want := finish(2, "tool_calls") + chunk("a", 0, "x") + finish(0, "stop") + finish(1, "length") +
		`data: {"choices":[],"usage":{"prompt_tokens":1,"total_tokens":4,"completion_tokens":3}}` + "\n\n" + done
	if err != nil || got != want {
		t.Errorf("%v\n got %q\nwant %q", err, got, want)
	}
}

// TestStreamMergerProperty: for all cuts and interleavings the output is that of a simple
// model, which knows the events, in the order in which they became complete.
func TestStreamMergerProperty(t *testing.T) {
	type ready struct {
		at   int // the offset after which the event is whole
		emit func(id string) string
		id   bool
	}
	rapid.Check(t, func(t *rapid.T) {
		fan := Fan{Copies: rapid.IntRange(1, 4).Draw(t, "copies"), Prompts: rapid.IntRange(1, 3).Draw(t, "prompts"), Usage: rapid.Bool().Draw(t, "usage")}
		streams := make([]string, fan.Copies)
		events := make([][]ready, fan.Copies)
		sum, usageFrom := 0, -1
		eol := rapid.SampledFrom([]string{"\n", "\r\n", "\r"})
		for k := range fan.Copies {
			var b strings.Builder
			add := func(emit func(string) string, hasID bool, lines ...string) {
				for _, l := range lines {
					b.WriteString(l)
					b.WriteString(eol.Draw(t, "eol"))
				}
				// The event is complete with the first byte that ends its blank line; after
				// "\r" a "\n" would belong to the line before.
				end, at := eol.Draw(t, "end"), b.Len()+1
				if end == "\n" && strings.HasSuffix(b.String(), "\r") {
					end, at = "\n\n", at+1
				}
				b.WriteString(end)
				events[k] = append(events[k], ready{at, emit, hasID})
			}
			completion := -1
			for range rapid.IntRange(0, 6).Draw(t, "events") {
				text := rapid.StringMatching(`[a-zé你 ]{0,12}`).Draw(t, "text")
				prompt := rapid.IntRange(0, fan.Prompts-1).Draw(t, "prompt")
				switch rapid.IntRange(0, 4).Draw(t, "kind") {
				case 0, 1:
					form := `{"id":"%s","choices":[{"text":"` + text + `","index":%d}]}`
					add(func(id string) string { return "data: " + fmt.Sprintf(form, id, fan.Index(k, prompt)) + "\n\n" }, true,
						"data: "+fmt.Sprintf(form, fmt.Sprint("copy-", k), prompt))
				case 2:
					add(func(string) string { return "x: 1\ndata: {\"a\":  [] }\n\n" }, false, `data: {"a": `, `x: 1`, `data: [] }`)
				case 3:
					b.WriteString(": " + text + "\r\n")
					events[k] = append(events[k], ready{b.Len() - 1, func(string) string { return ": " + text + "\n" }, false})
				case 4:
					completion = rapid.IntRange(0, 1<<40).Draw(t, "tokens")
					add(func(string) string { return "" }, false, fmt.Sprintf(`data: {"choices":[],"usage":{"completion_tokens":%d,"prompt_tokens":3}}`, completion))
				}
			}
			if completion >= 0 {
				sum += completion
				if usageFrom < 0 {
					usageFrom = k
				}
			}
			add(func(string) string { return "" }, false, "data: [DONE]")
			streams[k] = b.String()
		}
		id, want, got := "", "", ""
		m := fan.Stream(0)
		fed, open := make([]int, fan.Copies), fan.Copies
		for open > 0 {
			k := rapid.IntRange(0, fan.Copies-1).Draw(t, "copy")
			if fed[k] == len(streams[k]) {
				k = 0
				for fed[k] == len(streams[k]) {
					k++
				}
			}
			n := min(rapid.SampledFrom([]int{1, 2, 5, 17, 80, 1000}).Draw(t, "piece"), len(streams[k])-fed[k])
			piece := []byte(streams[k][fed[k] : fed[k]+n])
			if err := m.Feed(k, piece, func(b []byte) { got += string(b) }); err != nil {
				t.Fatalf("%v in %q", err, streams[k])
			}
			clear(piece)
			fed[k] += n
			if fed[k] == len(streams[k]) {
				open--
			}
			for len(events[k]) > 0 && events[k][0].at <= fed[k] {
				if events[k][0].id && id == "" {
					id = fmt.Sprint("copy-", k)
				}
				want += events[k][0].emit(id)
				events[k] = events[k][1:]
				if len(events[k]) == 0 {
					left := 0
					for _, e := range events {
						left += len(e)
					}
					if left == 0 {
						if fan.Usage && usageFrom >= 0 {
							want += fmt.Sprintf(`data: {"choices":[],"usage":{"completion_tokens":%d,"prompt_tokens":3}}`+"\n\n", sum)
						}
						want += "data: [DONE]\n\n"
					}
				}
			}
			if got != want {
				t.Fatalf("%q\n got %q\nwant %q", streams, got, want)
			}
		}
		if !m.Done() {
			t.Fatal("not done")
		}
	})
}
