package main

import "testing"

func TestGCPercent(t *testing.T) {
	f := func(live uint64, want int) {
		t.Helper()
		if got := gcPercent(live); got != want {
			t.Errorf("%d bytes live: %d %%, want %d %%", live, got, want)
		}
	}
	f(0, maxGCPercent)
	f(1<<20, maxGCPercent)
	f(6<<20, 200)
	f(12<<20, 100)
	f(16<<20, 100)
	// 64 MiB beside what requests hold: a large heap grows by a part of it.
	f(128<<20, 18)
	f(1<<30, 7)
	f(16<<30, 6)
}
