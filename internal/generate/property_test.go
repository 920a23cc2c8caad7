package generate

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/sluice-router/sluice/internal/openai"
)

// cut makes events of a sequence's tokens: pieces of random lengths, and the end with the last
// of them or by itself.
func cut(rnd *rand.Rand, prompt, sample int, ids []uint32, finish Finish, stop string, logprobs bool) (events []*Event) {
	for len(ids) > 0 {
		n := 1 + rnd.IntN(min(len(ids), 4))
		e := tell(ids[:n]...).of(prompt, sample)
		if logprobs {
			for _, id := range e.IDs {
				e.Logprobs = append(e.Logprobs, logprob(id, -1, TokenLogprob{id, -1}))
			}
		}
		events = append(events, e)
		ids = ids[n:]
	}
	if len(events) == 0 || rnd.IntN(2) == 0 {
		events = append(events, tell().of(prompt, sample))
	}
	last := events[len(events)-1]
	last.Finish, last.MatchedStop = finish, stop
	return events
}

// However events are cut and mixed, the client gets the same texts and each end once, streamed
// or not.
func TestEveryCutGivesTheSameAnswer(t *testing.T) {
	alphabet := []uint32{'a', '\n', '"', 0xf0, 0x9f, 0x98, 0x80, 0xc3, 0xa9, idHello, idWorld, idStop, 'S', 'T', 'O', 'P', idUser, idTests}
	for seed := range uint64(3000) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		base := newRequest(func(r *Request) {
			if rnd.IntN(2) == 0 {
				r.Route = openai.RouteCompletions
				r.Prompts = [][]uint32{{1}, {2, 3}}[:1+rnd.IntN(2)]
			}
			r.Samples = 1 + rnd.IntN(3)
			r.Sampling.SkipSpecial = rnd.IntN(2) == 0
			if rnd.IntN(2) == 0 {
				r.Sampling.Stop = []string{"STOP", "a\n", "😀😀"}[rnd.IntN(3):]
				r.Sampling.IncludeStop = rnd.IntN(2) == 0
				r.Sampling.MinTokens = uint32(rnd.IntN(4))
			}
			if rnd.IntN(3) == 0 {
				r.Sampling.Logprobs, r.Form.Logprobs = 1, 1
			}
			r.Form.TokenIDs, r.Form.Usage = rnd.IntN(2) == 0, rnd.IntN(2) == 0
		})
		type sequence struct {
			prompt, sample int
			ids            []uint32
			finish         Finish
		}
		var seqs []sequence
		for p := range base.Prompts {
			for s := range base.Samples {
				q := sequence{prompt: p, sample: s, finish: Length}
				for range rnd.IntN(20) {
					q.ids = append(q.ids, alphabet[rnd.IntN(len(alphabet))])
				}
				if rnd.IntN(2) == 0 {
					q.ids, q.finish = append(q.ids, idEnd), Stopped
				}
				seqs = append(seqs, q)
			}
		}
		var want string
		for round := range 4 {
			r := *base
			r.Stream = round > 0
			var lists [][]*Event
			for _, q := range seqs {
				lists = append(lists, cut(rnd, q.prompt, q.sample, q.ids, q.finish, "", r.Sampling.Logprobs >= 0))
			}
			var events []*Event
			for len(lists) > 0 {
				i := rnd.IntN(len(lists))
				events = append(events, lists[i][0])
				if lists[i] = lists[i][1:]; len(lists[i]) == 0 {
					lists = append(lists[:i], lists[i+1:]...)
				}
			}
			got, err := answer(&r, events...)
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			if r.Stream && strings.Count(got, "data: [DONE]") != 1 {
				t.Fatalf("seed %d: the stream does not end once:\n%s", seed, got)
			}
			g := gist(t, got)
			if round == 0 {
				want = g
				checkModel(t, seed, base, g, func(i int) ([]uint32, Finish) { return seqs[i].ids, seqs[i].finish })
			}
			if g != want {
				t.Fatalf("seed %d, round %d: %s\nwant %s", seed, round, g, want)
			}
		}
	}
}

// checkModel compares texts with those that are made of all tokens at once.
func checkModel(t *testing.T, seed uint64, r *Request, got string, seq func(int) ([]uint32, Finish)) {
	t.Helper()
	if r.Sampling.MinTokens > 0 {
		return
	}
	var want strings.Builder
	for i := range len(r.Prompts) * r.Samples {
		ids, finish := seq(i)
		if finish == Stopped && !r.Sampling.IncludeStop {
			ids = ids[:len(ids)-1]
		}
		text := string(testTokenizer.Decode(nil, ids, r.decodeOptions()))
		reason, stop := map[Finish]string{Stopped: "stop", Length: "length"}[finish], "<nil>"
		first, end := -1, len(text)+1
		for k, s := range r.Sampling.Stop {
			if at := strings.Index(text, s); at >= 0 && at+len(s) < end {
				first, end = k, at+len(s)
			}
		}
		if first >= 0 {
			s := r.Sampling.Stop[first]
			reason, stop = "stop", s
			if text = text[:end]; !r.Sampling.IncludeStop {
				text = text[:end-len(s)]
			}
		}
		fmt.Fprintf(&want, "%q %s %s|", text, reason, stop)
	}
	if got != want.String() {
		t.Fatalf("seed %d: %s\nwant %s", seed, got, want.String())
	}
}

// A hostile engine gets an error, and clients no second end.
func FuzzEvents(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3}, true)
	f.Add([]byte{0x10, 0x81, 'a', 0xff, 7, 9, 0x41, 0x20}, false)
	f.Fuzz(func(t *testing.T, script []byte, stream bool) {
		r := newRequest(func(r *Request) {
			r.Stream, r.Samples, r.Sampling.Stop, r.Sampling.MaxTokens = stream, 2, []string{"STOP", "aa"}, 12
		})
		var a Answer
		a.Begin(r, "1", 7)
		var out []byte
		var err error
		for len(script) > 1 && err == nil {
			n := min(int(script[0]>>4), len(script)-2)
			e := tell().of(0, int(script[0]&3)-1+int(script[1]>>7))
			e.Finish = Finish(script[1] & 7)
			for _, c := range script[2 : 2+n] {
				e.IDs = append(e.IDs, uint32(c)*2)
			}
			if script[1]&0x40 != 0 {
				e.MatchedStop = "aa"
			}
			script = script[2+n:]
			out, err = a.Event(out, e)
		}
		if err == nil {
			out, err = a.End(out)
		}
		if err != nil {
			return
		}
		for _, c := range strings.SplitAfter(gist(t, string(out)), "|") {
			if strings.Count(c, "stop ")+strings.Count(c, "length ") > 1 {
				t.Errorf("two ends: %s", c)
			}
		}
	})
}
