package openai

import (
	"bytes"
	"encoding/json"
	"net"
	"testing"
)

func mustPeek(t testing.TB, route Route, body string) *Peeked {
	t.Helper()
	p := new(Peeked)
	if err := p.Read(route, []byte(body), PeekOptions{}); err != nil {
		t.Fatalf("Read(%q): %v", body, err)
	}
	return p
}

func TestPeekAndSpliceOfAnOrdinaryChat(t *testing.T) {
	body := []byte(`{"model":"m","stream":true,"messages":[{"role":"user","content":"hi \u00e9"}],"seed":9007199254740993}`)
	p, err := Peek(RouteChatCompletions, body, PeekOptions{Refuse: ControlledFields})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Release()
	if p.Model != "m" || !p.Stream || p.N != 1 || p.PromptBytes != 5 || p.Messages != 1 {
		t.Fatalf("got model %q, stream %t, n %d, %d prompt bytes, %d messages", p.Model, p.Stream, p.N, p.PromptBytes, p.Messages)
	}
	var s Splicer
	s.Reset(p)
	s.SetString(FieldBootstrapHost, "10.0.0.7")
	s.SetInt(FieldBootstrapPort, 8998)
	s.SetInt(FieldBootstrapRoom, 1<<62)
	got := string(s.AppendBytes(nil))
	want := `{"bootstrap_host":"10.0.0.7","bootstrap_port":8998,"bootstrap_room":4611686018427387904,` + string(body[1:])
	if got != want {
		t.Fatalf("got  %s\nwant %s", got, want)
	}
	segs, n := s.Segments()
	if len(segs) != 3 || n != len(want) {
		t.Fatalf("%d segments of %d bytes, want 3 of %d", len(segs), n, len(want))
	}
	if &segs[2][0] != &body[1] {
		t.Error("the client's bytes were copied")
	}
}

func TestSplice(t *testing.T) {
	set := func(f Field, v string) func(*Splicer) { return func(s *Splicer) { s.SetRaw(f, []byte(v)) } }
	del := func(fs ...Field) func(*Splicer) {
		return func(s *Splicer) {
			for _, f := range fs {
				s.Delete(f)
			}
		}
	}
	all := func(fs ...func(*Splicer)) func(*Splicer) {
		return func(s *Splicer) {
			for _, f := range fs {
				f(s)
			}
		}
	}
	for _, c := range []struct {
		name, in string
		edit     func(*Splicer)
		want     string
	}{
		{"nothing", ` { "a" : 1 } `, all(), ` { "a" : 1 } `},
		{"insert into the empty object", `{}`, set(FieldN, "1"), `{"n":1}`},
		{"insert into blank object", `{ }`, set(FieldN, "1"), `{"n":1 }`},
		{"insert two into the empty object", `{}`, all(set(FieldN, "1"), set(FieldSeed, "2")), `{"n":1,"seed":2}`},
		{"replace", `{"a":1, "n" : 4 ,"b":2}`, set(FieldN, "1"), `{"a":1, "n" : 1 ,"b":2}`},
		{"replace an escaped name", `{"\u006e":4}`, set(FieldN, "1"), `{"\u006e":1}`},
		{"replace between two inserts", `{"n":4}`, all(set(FieldSeed, "1"), set(FieldN, "2"), set(FieldUser, `"u"`)), `{"seed":1,"user":"u","n":2}`},
		{"delete the only one", `{ "n" : 4 }`, del(FieldN), `{ }`},
		{"delete the first", `{ "n" : 4 , "a":1}`, del(FieldN), `{ "a":1}`},
		{"delete the middle", `{"a":1, "n" :4 ,"b":2}`, del(FieldN), `{"a":1,"b":2}`},
		{"delete the last", `{"a":1 , "n":4 }`, del(FieldN), `{"a":1  }`},
		{"delete the last two", `{"a":1,"n":4,"seed":2}`, del(FieldN, FieldSeed), `{"a":1}`},
		{"delete first and last", `{"n":4,"a":1,"seed":2}`, del(FieldSeed, FieldN), `{"a":1}`},
		{"delete all of three", `{"n":4,"user":"x","seed":2}`, del(FieldSeed, FieldN, FieldUser), `{}`},
		{"delete twice", `{"n":4,"a":1}`, del(FieldN, FieldN), `{"a":1}`},
		{"delete what is not there", `{"a":1}`, del(FieldN), `{"a":1}`},
		{"delete all and insert", `{"n":4,"seed":2}`, all(del(FieldSeed, FieldN), set(FieldUser, `"u"`)), `{"user":"u"}`},
		{"delete first and insert", `{"n":4,"a":2}`, all(del(FieldN), set(FieldUser, `"u"`)), `{"user":"u","a":2}`},
		{"delete beside a replaced one", `{"n":4,"seed":2,"user":"x"}`, all(del(FieldSeed), set(FieldUser, `"u"`), set(FieldN, "1")), `{"n":1,"user":"u"}`},
		{"a null of the client is replaced, not doubled", `{"bootstrap_room":null}`, set(FieldBootstrapRoom, "7"), `{"bootstrap_room":7}`},
	} {
		p := mustPeek(t, RouteOther, c.in)
		var s Splicer
		for range 2 { // a Splicer is reusable
			s.Reset(p)
			c.edit(&s)
			if got := string(s.AppendBytes(nil)); got != c.want {
				t.Errorf("%s: %s became %s, want %s", c.name, c.in, got, c.want)
			}
		}
	}
}

func TestSpliceValues(t *testing.T) {
	p := mustPeek(t, RouteGenerate, `{}`)
	var s Splicer
	s.Reset(p)
	s.SetStringTimes(FieldBootstrapHost, `[fd00::1]`, 3)
	s.SetNullTimes(FieldBootstrapPort, 2)
	s.SetInts(FieldBootstrapRoom, []int64{1<<63 - 1, -1 << 63, 0})
	s.SetIntTimes(FieldRoutedDPRank, 5, 2)
	s.SetNull(FieldDisaggPrefillDPRank)
	s.SetBool(FieldStream, false)
	s.SetString(FieldModel, "a\"b\\c\n\x01\x7f\xffé\u2028")
	s.SetIntTimes(FieldDataParallelRank, 1, 0)
	want := `{"bootstrap_host":["[fd00::1]","[fd00::1]","[fd00::1]"],"bootstrap_port":[null,null],` +
		`"bootstrap_room":[9223372036854775807,-9223372036854775808,0],"routed_dp_rank":[5,5],` +
		`"disagg_prefill_dp_rank":null,"stream":false,` +
		`"model":"a\"b\\c\n\u0001\u007f` + "\uFFFDé\u2028" + `","data_parallel_rank":[]}`
	got := s.AppendBytes(nil)
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	if !json.Valid(got) {
		t.Error("not JSON")
	}
}

// A vectored write consumes its slice; the body of a second attempt must still be whole.
func TestSegmentsAfterVectoredWrite(t *testing.T) {
	p := mustPeek(t, RouteOther, `{"a":1}`)
	var s Splicer
	s.Reset(p)
	s.SetInt(FieldN, 1)
	for range 2 {
		segs, size := s.Segments()
		bufs := net.Buffers(segs)
		var out bytes.Buffer
		if _, err := bufs.WriteTo(&out); err != nil {
			t.Fatal(err)
		}
		if out.String() != `{"n":1,"a":1}` || out.Len() != size {
			t.Fatalf("wrote %q, size %d", out.String(), size)
		}
	}
}

func TestSpliceAllocations(t *testing.T) {
	p := mustPeek(t, RouteChatCompletions, `{"model":"m","messages":[{"role":"user","content":"hello"}]}`)
	s := new(Splicer)
	n := testing.AllocsPerRun(100, func() {
		s.Reset(p)
		s.SetString(FieldBootstrapHost, "10.0.0.7")
		s.SetInt(FieldBootstrapPort, 8998)
		s.SetInt(FieldBootstrapRoom, 1<<62)
		s.Segments()
	})
	if n > 0 {
		t.Errorf("%v allocations to insert three fields, want none", n)
	}
}

// Integers above 2^53 must not change, as they do if a body is decoded into float64 and
// encoded again to change one field.
func TestNumbersArriveDigitForDigit(t *testing.T) {
	rest := `"seed":9007199254740993,"tools":[{"function":{"parameters":{"maximum":9223372036854775807,"x":1e400}}}],` +
		`"temperature":0.10,"top_p":1.0,"bias":-0,"presence_penalty":1e3,"metadata":{"user_id":12345678901234567890},` +
		`"s":"\ud800","messages":[]`
	p := mustPeek(t, RouteChatCompletions, `{"model":"alias", `+rest+`}`)
	if p.Seed != 9007199254740993 || !p.HasSeed {
		t.Errorf("seed read as %d", p.Seed)
	}
	var s Splicer
	s.Reset(p)
	s.SetString(FieldModel, "real/name")
	s.SetInt(FieldBootstrapRoom, 1<<63-1)
	want := `{"bootstrap_room":9223372036854775807,"model":"real/name", ` + rest + `}`
	if got := string(s.AppendBytes(nil)); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// Fields that the router does not know reach the worker.
func TestUnknownFieldsStay(t *testing.T) {
	in := `{"chat_template_kwargs":{"enable_thinking":false},"model":"m","separate_reasoning":true,"made_up":{"a":[1,{"b":null}]},` +
		`"messages":[{"role":"user","content":"x","made_up":1,"z":{}}],"tools":[{"type":"function","made_up":[]}],"twice":1,"twice":2}`
	p := mustPeek(t, RouteChatCompletions, in)
	var s Splicer
	s.Reset(p)
	s.SetInt(FieldBootstrapRoom, 1)
	if got, want := string(s.AppendBytes(nil)), `{"bootstrap_room":1,`+in[1:]; got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The prefill's copy must not keep max_completion_tokens, or stream_options without
// stream, and decode must not get the prefill's limits: each leg is its own splice of the
// same body.
func TestEachLegIsSplicedByItself(t *testing.T) {
	in := `{"stream":true,"stream_options":{"include_usage":true},"max_completion_tokens":500,"messages":[]}`
	p := mustPeek(t, RouteChatCompletions, in)
	if !p.IncludeUsage || p.MaxTokens != 500 {
		t.Errorf("include_usage %t, max tokens %d", p.IncludeUsage, p.MaxTokens)
	}
	var prefill, decode Splicer
	prefill.Reset(p)
	decode.Reset(p)
	prefill.SetBool(FieldStream, false)
	prefill.Delete(FieldStreamOptions)
	prefill.SetInt(FieldMaxCompletionTokens, 1)
	if got, want := string(prefill.AppendBytes(nil)), `{"stream":false,"max_completion_tokens":1,"messages":[]}`; got != want {
		t.Errorf("prefill: got %s, want %s", got, want)
	}
	if got := string(decode.AppendBytes(nil)); got != in {
		t.Errorf("decode: got %s, want it unchanged", got)
	}
}

func TestSpliceTwiceIsABug(t *testing.T) {
	p := mustPeek(t, RouteOther, `{"n":1}`)
	for name, edit := range map[string]func(*Splicer){
		"set twice":       func(s *Splicer) { s.SetInt(FieldSeed, 1); s.SetInt(FieldSeed, 2) },
		"replace twice":   func(s *Splicer) { s.SetInt(FieldN, 1); s.SetInt(FieldN, 2) },
		"set and deleted": func(s *Splicer) { s.SetInt(FieldN, 1); s.Delete(FieldN) },
		"deleted and set": func(s *Splicer) { s.Delete(FieldN); s.SetInt(FieldN, 1) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			var s Splicer
			s.Reset(p)
			edit(&s)
		}()
	}
}
