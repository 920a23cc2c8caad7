package dispatch

import "testing"

// account is a Memory with a limit.
type account struct{ used, limit int }

func (a *account) ReserveMemory(n int) bool {
	if a.used+n > a.limit {
		return false
	}
	a.used += n
	return true
}

func (a *account) ReleaseMemory(n int) { a.used -= n }

// An answer that is collected is counted as it grows, is refused where there is no
// room, and is given back once with the request.
func TestCollectedAnswersAreCounted(t *testing.T) {
	a := &account{limit: 1 << 20}
	x := &request{call: &Call{Memory: a}}
	x.refs.Store(1)
	c := collected{x: x}
	for n := 0; n < 700<<10; n += 10 << 10 {
		if !c.hold(n) {
			t.Fatalf("no room for %d bytes with %d in use", n, a.used)
		}
	}
	if a.used < 690<<10 {
		t.Errorf("%d bytes are counted", a.used)
	}
	if c.hold(2 << 20) {
		t.Error("there is room beyond the limit")
	}
	if f := x.noRoom(); blames[f.blame()].charge != chargeNone || f.local.Status != 503 {
		t.Errorf("%+v", f)
	}
	x.unref()
	if a.used != 0 {
		t.Errorf("%d bytes are left", a.used)
	}
}
