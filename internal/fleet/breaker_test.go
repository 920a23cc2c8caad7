package fleet

import (
	"testing"
	"time"

	"github.com/sluice-router/sluice/admission"
	"github.com/sluice-router/sluice/internal/config"
)

// A story: f failure, s success, "." a second passes, "!" the time of being open
// is looked at; against the state after each letter: c, o, h.
func TestBreaker(t *testing.T) {
	for _, tc := range []struct{ name, in, want string }{
		{"opens at the threshold", "fff", "cco"},
		{"a success takes one failure back", "ffsfsfsff", "cccccccco"},
		{"failures are forgotten", "ff..........f", "ccccccccccccc"},
		{"half-open after its time, by itself", "fff.!.!.!.!.!", "ccooooooooooh"},
		{"late answers do not matter while open", "fffsssfff", "ccooooooo"},
		{"closes after successes", "fff.....!ssff", "ccoooooohhccc"},
		{"opens again at the first failure", "fff.....!sf", "ccoooooohho"},
		{"not at the first that nobody proved", "fff.....!uss", "ccoooooohhhc"},
		{"but at as many as would have closed it", "fff.....!uu", "ccoooooohho"},
		{"the last candidate is half-open at once", "lllss", "cchhc"},
		{"and stays so", "llllll", "cchhhh"},
		{"until others are there", "lllf", "ccho"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			o := &config.CircuitBreaker{FailureThreshold: 3, SuccessThreshold: 2, TimeoutDuration: 5 * time.Second, WindowDuration: 10 * time.Second}
			b := &breaker{opts: o}
			now := admission.Instant(0)
			got := ""
			for _, c := range tc.in {
				before, _ := b.get()
				changed := false
				switch c {
				case 'f':
					changed = b.failure(now, Proven, 0) && b.open(now, false)
				case 'u':
					changed = b.failure(now, Unproven, 0) && b.open(now, false)
				case 'l': // a failure of the last candidate
					changed = b.failure(now, Proven, 0) && b.open(now, true)
				case 's':
					changed = b.success(func() admission.Instant { return 0 })
				case '.':
					now = now.Add(time.Second)
				case '!':
					changed = b.elapse(now, false)
				}
				state, _ := b.get()
				if changed != (state != before) {
					t.Errorf("after %q: changed is %t, from %s to %s", tc.in[:len(got)+1], changed, before, state)
				}
				got += state.String()[:1]
			}
			if got != tc.want {
				t.Errorf("%s\n got %s\nwant %s", tc.in, got, tc.want)
			}
		})
	}
}

func TestBreakerDisabled(t *testing.T) {
	b := &breaker{opts: &config.CircuitBreaker{Disabled: true}}
	for range 100 {
		if b.failure(0, Proven, 0) {
			t.Fatal("it opened")
		}
	}
}

func TestBreakerOrdinarySuccessIsFree(t *testing.T) {
	o := &config.Default().CircuitBreaker
	b := &breaker{opts: o}
	if n := testing.AllocsPerRun(100, func() { b.success(func() admission.Instant { return 0 }) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
