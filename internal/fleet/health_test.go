package fleet

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// A story of checks, a second apart, against the state after each. The words:
// ok; busy (health fails, alive answers); gone (neither answers); denied; none.
// "+" behind a word: bytes came from the worker; "r": it has requests.
func TestVitals(t *testing.T) {
	o := &config.Health{FailureThreshold: 3, SuccessThreshold: 2, BusyGrace: 5 * time.Second}
	state := func(v healthState) string {
		switch {
		case v.dead:
			return "dead"
		case v.healthy && v.forgiven:
			return "excused"
		case v.healthy:
			return "up"
		case v.everHealthy:
			return "down"
		}
		return "new"
	}
	for _, tc := range []struct{ name, in, want string }{
		{"the first success suffices", "gone gone ok", "new new up"},
		{"three failures in a row", "ok gone gone ok gone gone gone", "up up up up up up dead"},
		{"busy and idle: given no work, not dead", "ok busy busy busy busy busy", "up up up down down down"},
		{"busy with requests: grace, counted from the last sign", "ok busyr busyr busyr busyr busyr busyr busyr",
			"up excused excused excused excused up up down"},
		{"busy with progress: for ever", "ok busy+ busy+ busy+ busy+ busy+ busy+ busy+ busy+",
			"up excused excused excused excused excused excused excused excused"},
		{"progress forgives counted failures", "ok busy busy busy+ busy busy busy", "up up up excused up up down"},
		{"a broken connection counts, progress or not", "ok gone+ gone+ gone+", "up up up down"},
		{"dead only without a byte", "ok gone gone gone+ gone gone gone", "up up up down down down dead"},
		{"two successes bring it back", "ok gone gone gone ok ok", "up up up dead dead up"},
		{"a success between does not", "ok gone gone gone ok gone ok ok", "up up up dead dead dead dead up"},
		{"a refused key: not given work, not dead", "ok denied denied denied denied", "up up up down down"},
		{"nothing said, nothing changed", "ok gone none gone none none gone", "up up up up up up dead"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			v := healthState{}
			var got []string
			now := admission.Instant(0)
			for _, word := range strings.Fields(tc.in) {
				now = now.Add(time.Second)
				var s activity
				word, s.progress = strings.CutSuffix(word, "+")
				s.during = s.progress
				word, s.requests = strings.CutSuffix(word, "r")
				c := map[string]checkResult{
					"ok": {health: outcomeOK, alive: outcomeOK}, "busy": {health: outcomeBusy, alive: outcomeOK},
					"gone": {health: outcomeUnreachable, alive: outcomeUnreachable}, "denied": {health: outcomeDenied, alive: outcomeOK}, "none": {},
				}[word]
				v.evaluate(now, c, s, o)
				got = append(got, state(v))
			}
			if got := strings.Join(got, " "); got != tc.want {
				t.Errorf("%s\n got %s\nwant %s", tc.in, got, tc.want)
			}
		})
	}
}

func TestVitalsPause(t *testing.T) {
	o := &config.Health{FailureThreshold: 3, SuccessThreshold: 2, Interval: 30 * time.Second}
	gone := checkResult{health: outcomeUnreachable, alive: outcomeUnreachable}
	v := healthState{}
	var got []string
	step := func(c checkResult, n int) {
		for range n {
			v.evaluate(0, c, activity{}, o)
			got = append(got, v.next(o).String())
		}
	}
	step(gone, 7)
	step(checkResult{health: outcomeOK}, 1)
	step(gone, 5)
	step(checkResult{health: outcomeOK}, 2)
	want := "[1s 2s 4s 8s 16s 30s 30s 30s 10s 10s 1s 2s 4s 1s 30s]"
	if s := fmt.Sprint(got); s != want {
		t.Errorf("pauses %s, want %s", s, want)
	}
}
