//go:build !race

package generate

import "testing"

func TestATokenAllocatesNothing(t *testing.T) {
	for _, edit := range []func(*Request){
		func(*Request) {},
		func(r *Request) { r.Sampling.Stop = []string{"STOP", "\n\nUser:"} },
		func(r *Request) { r.Form.Usage, r.Form.UsageAlways, r.Form.TokenIDs = true, true, true },
	} {
		r := newRequest(func(r *Request) { r.Stream = true; r.Sampling.MaxTokens = 1 << 30; edit(r) })
		var a Answer
		a.Begin(r, "1", 7)
		e := tell(idWorld, '"', 0xc3, 0xa9)
		out := make([]byte, 0, 4096)
		_, _ = a.Event(out, e)
		if n := testing.AllocsPerRun(100, func() {
			if _, err := a.Event(out, e); err != nil {
				t.Error(err)
			}
		}); n > 0 {
			t.Errorf("%v allocations", n)
		}
	}
}

func TestAnAnswerThatIsUsedAgainAllocatesNothing(t *testing.T) {
	r := newRequest(func(r *Request) { r.Stream, r.Sampling.Stop = true, []string{"STOP"} })
	var a Answer
	e, last := tell(idWorld), end(Stopped, idEnd)
	out := make([]byte, 0, 4096)
	if n := testing.AllocsPerRun(100, func() {
		a.Begin(r, "1", 7)
		_, _ = a.Event(out, e)
		_, _ = a.Event(out, last)
		if _, err := a.End(out); err != nil {
			t.Error(err)
		}
		a.Release()
	}); n > 1 { // the id with its prefix
		t.Errorf("%v allocations", n)
	}
}
