package replay

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/internal/kv"
)

func read(t *testing.T, text string) *Trace {
	t.Helper()
	tr, err := Read(strings.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	return tr
}

func TestMooncakeTrace(t *testing.T) {
	tr := read(t, `{"timestamp": 6000, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}

{"timestamp": 3000, "input_length": 512, "output_length": 1, "hash_ids": [1], "more": {}}
`)
	if len(tr.Requests) != 2 || tr.BlockTokens != 512 || tr.Grain != 3*time.Second {
		t.Fatalf("%+v", tr)
	}
	first, second := tr.Requests[0], tr.Requests[1]
	if first.At != 0 || second.At != 3*time.Second || second.Prompt != 600 || second.Output != 7 {
		t.Fatalf("%+v", tr.Requests)
	}
	if first.Blocks[0] != second.Blocks[0] || second.Blocks[0] == second.Blocks[1] {
		t.Fatal("blocks are not alike where the ids are")
	}
	if second.tokens(1) != 512 || second.tokens(2) != 600 {
		t.Fatal("the last block is not short")
	}
}

// hashes is how the access log writes keys.
func hashes(keys ...uint64) string {
	var b []byte
	for _, k := range keys {
		b = binary.BigEndian.AppendUint64(b, k)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func TestAccessLogInBothForms(t *testing.T) {
	for _, text := range []string{
		`time=2026-11-30T10:00:00.000Z level=INFO msg="ready to serve" addr=1
time=2026-11-30T10:00:05.000Z level=INFO msg=request id=a route=chat total_ms=3000 status=200 note="a \"b\" c" prompt_tokens=100 output_tokens=20 prefix_hashes=` + hashes(1, 2) + `
time=2026-11-30T10:00:05.500Z level=INFO msg=request id=c route=health total_ms=1 status=200
time=2026-11-30T10:00:06.000Z level=INFO msg=request id=b route=chat total_ms=5000 status=200 prompt_tokens=31`,
		`{"time":"2026-11-30T10:00:00.000Z","level":"INFO","msg":"ready to serve","addr":1}
{"time":"2026-11-30T10:00:05.000Z","level":"INFO","msg":"request","total_ms":3000,"prompt_tokens":100,"output_tokens":20,"prefix_hashes":"` + hashes(1, 2) + `"}
{"time":"2026-11-30T10:00:05.500Z","level":"INFO","msg":"request","total_ms":1}
{"time":"2026-11-30T10:00:06.000Z","level":"INFO","msg":"request","total_ms":5000,"prompt_tokens":31}`,
	} {
		tr := read(t, text)
		if len(tr.Requests) != 2 || tr.Skipped["without prompt_tokens"] != 1 || tr.Skipped["not of a request"] != 1 {
			t.Fatalf("%+v", tr)
		}
		// The one that was logged last came first.
		b, a := tr.Requests[0], tr.Requests[1]
		if b.At != 0 || b.Prompt != 31 || len(b.Blocks) != 0 || a.At != time.Second || a.Output != 20 {
			t.Fatalf("%+v", tr.Requests)
		}
		if len(a.Blocks) != 2 || a.Blocks[1] != kv.Key(2) || a.tokens(1) != 50 || a.tokens(2) != 100 || tr.BlockTokens != 50 || tr.Grain != 0 {
			t.Fatalf("%+v of %d tokens", a, tr.BlockTokens)
		}
	}
}

// The file of a log has more than the log: what the process's starter and its last words say.
// And it may be copied while it is written.
func TestAnAccessLogIsReadAsItLies(t *testing.T) {
	text := `time=2026-11-30T10:00:05.000Z level=INFO msg=request total_ms=1 prompt_tokens=10`
	json := `{"time":"2026-11-30T10:00:05.000Z","msg":"request","total_ms":1,"prompt_tokens":10}`
	for _, line := range []string{text, json} {
		tr := read(t, "+ exec sluice serve\n\n"+line+"\npanic: x\ngoroutine 1 [running]:\n"+line+"\n"+line[:20])
		if len(tr.Requests) != 2 || tr.Skipped[ofOthers] != 3 || tr.Skipped["cut off at the end of the log"] != 1 {
			t.Errorf("%+v", tr)
		}
		if _, err := Read(strings.NewReader(line + "\n" + line[:20] + "\n" + line)); err == nil || !strings.HasPrefix(err.Error(), "line 2: ") {
			t.Errorf("in the middle: %v", err)
		}
	}
}

func TestBadTracesNameTheLine(t *testing.T) {
	ok := `{"timestamp": 0, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}` + "\n"
	for text, want := range map[string]string{
		"hello\n":                                                                                  "line 1: this is neither",
		ok + "\n" + ok + "{\"\n":                                                                   "line 4: at byte 2",
		ok + `{"input_length": 1}`:                                                                 "line 2: there is no timestamp",
		ok + `{"timestamp": 1}`:                                                                    "line 2: there is no input_length",
		ok + `{"timestamp": -1, "input_length": 1}`:                                                "line 2: the timestamp -1",
		ok + `{"timestamp": 1e300, "input_length": 1}`:                                             "line 2: the timestamp 1e+300",
		ok + `{"timestamp": 1, "input_length": -5}`:                                                "line 2: the input_length -5",
		ok + `{"timestamp": 1, "input_length": 99999999999}`:                                       "line 2: the input_length 99999999999",
		ok + `{"timestamp": 1, "input_length": 5, "output_length": -1}`:                            "line 2: -1 output tokens",
		ok + `{"timestamp": 1, "input_length": 5, "hash_ids": [1,2]}`:                              "line 2: 2 hash_ids are more than 5 tokens have",
		ok + `{"timestamp": 1, "input_length": 5, "hash_ids": [-1]}`:                               "line 2: hash_ids cannot be a number -1",
		ok + `{"timestamp": "x", "input_length": 5}`:                                               "line 2: timestamp cannot be a string",
		ok + strings.Repeat("x", maxLine+1):                                                        "line 2: it is longer than 4194304 bytes",
		"":                                                                                         "there is no request in it",
		"time=2026-11-30T10:00:05.000Z level=INFO msg=ready\n":                                     "there is no request in it",
		`time=2026-11-30T10:00:05.000Z msg=request total_ms=x`:                                     `line 1: total_ms="x" cannot be read`,
		`time=2026-11-30T10:00:05.000Z msg=request prompt_tokens=1 note="x`:                        `line 1: the value of "note" has no end`,
		`time=2026-11-30T10:00:05.000Z msg=request prompt_tokens=1 x`:                              `line 1: "x" has no value`,
		`time=yesterday msg=request prompt_tokens=1`:                                               `line 1: time="yesterday" cannot be read`,
		`{"msg":"request","prompt_tokens":1}`:                                                      "line 1: there is no time",
		`{"time":"2026-11-30T10:00:05Z","msg":"request","total_ms":-1,"prompt_tokens":1}`:          "line 1: total_ms=-1 is not a time",
		`{"time":"2026-11-30T10:00:05Z","msg":"request","prompt_tokens":-1}`:                       "line 1: -1 prompt tokens",
		`{"time":"2026-11-30T10:00:05Z","msg":"request","prompt_tokens":1,"prefix_hashes":"x"}`:    "line 1: prefix_hashes is not a row",
		`{"time":"2026-11-30T10:00:05Z","msg":"request","prompt_tokens":1,"prefix_hashes":"AAAA"}`: "line 1: prefix_hashes is not a row",
		`{"time":"2026-11-30T10:00:05Z","msg":"request","prompt_tokens":1}` + "\n" +
			`{"time":"2036-11-30T10:00:05Z","msg":"request","prompt_tokens":1}` + "\n": "line 2: its time is",
		"hello\n" + ok:                  "line 1: this is neither",
		strings.Repeat("hello\n", 1000): "line 1: this is neither",
	} {
		_, err := Read(strings.NewReader(text))
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%.60q: %v, want %s", text, err, want)
		}
		var line *LineError
		if strings.HasPrefix(want, "line") && !errors.As(err, &line) {
			t.Errorf("%.60q: %T", text, err)
		}
	}
}

func TestIdealIsThatOfOneCacheWithoutBound(t *testing.T) {
	tr := read(t, `{"timestamp": 0, "input_length": 1024, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 1536, "hash_ids": [1, 3, 2]}
{"timestamp": 6000, "input_length": 1100, "hash_ids": [1, 2, 9]}`)
	if got, want := tr.ideal([]int{0, 1, 2}), float64(512+1024)/float64(1024+1536+1100); got != want {
		t.Fatalf("%v, want %v", got, want)
	}
}

func TestArrivalsOfOneTimeAreSpread(t *testing.T) {
	var b strings.Builder
	for range 100 {
		fmt.Fprintln(&b, `{"timestamp": 3000, "input_length": 1}`)
	}
	tr := read(t, b.String())
	at, order := tr.arrivals(2, 7)
	seen := map[time.Duration]bool{}
	last := time.Duration(-1)
	for _, i := range order {
		if at[i] < last || at[i] < 0 || at[i] >= 1500*time.Millisecond {
			t.Fatalf("%v after %v", at[i], last)
		}
		last = at[i]
		seen[last] = true
	}
	again, _ := tr.arrivals(2, 7)
	other, _ := tr.arrivals(2, 8)
	if len(seen) < 90 || again[5] != at[5] || other[5] == at[5] {
		t.Fatal("not spread by the number")
	}
}

func FuzzRead(f *testing.F) {
	f.Add(`{"timestamp": 6000, "input_length": 600, "output_length": 7, "hash_ids": [1, 2]}`)
	f.Add(`time=2026-11-30T10:00:05.000Z level=INFO msg=request total_ms=3000 note="a \"b\"" prompt_tokens=100 output_tokens=20 prefix_hashes=` + hashes(1, 2))
	f.Add(`{"time":"2026-11-30T10:00:05.000Z","msg":"request","total_ms":1e9,"prompt_tokens":100,"prefix_hashes":"` + hashes(1) + `"}`)
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := Read(strings.NewReader(text))
		if err != nil {
			if strings.ContainsAny(err.Error(), "\n\x00") {
				t.Fatalf("%q", err)
			}
			return
		}
		for i := range tr.Requests {
			r := &tr.Requests[i]
			if r.At < 0 || r.Prompt < 0 || r.Output < 0 || i > 0 && r.At < tr.Requests[i-1].At || r.tokens(len(r.Blocks)) > r.Prompt {
				t.Fatalf("%+v", *r)
			}
		}
		o := Default()
		o.Workers, o.CacheBlocks = 2, 3
		results, err := Run(tr, o, []string{"round_robin", "cache_aware_exact"})
		if err != nil {
			t.Fatal(err)
		}
		for r, err := range results {
			if err != nil || len(r.Requests) != len(tr.Requests) || r.Rejected > 0 {
				t.Fatalf("%+v %v", r, err)
			}
		}
	})
}
