package dispatch

import "testing"

// Every request passes noteWait, whether it waited or not.
func TestNoteWaitAllocatesNothing(t *testing.T) {
	x := &exchange{request: request{call: &Call{}}}
	if n := testing.AllocsPerRun(100, func() { x.noteWait(nil) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
