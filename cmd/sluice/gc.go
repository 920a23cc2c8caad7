package main

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
)

// A router's live heap is a few megabytes, and each request leaves some kilobytes
// of garbage. The runtime's default then collects tens of times a second, which
// was 10 % of all CPU time. So a small heap may grow by collectEvery before it is
// collected; a large one by its own size, as usual.
const (
	collectEvery = 12 << 20
	maxGCPercent = 400
	minGCPercent = 100
)

// tuneGC keeps the collector at that, unless GOGC says what the operator wants.
func tuneGC() {
	if os.Getenv("GOGC") != "" {
		return
	}
	setGCPercent()
	afterEachGC(setGCPercent)
}

func setGCPercent() {
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	metrics.Read(live)
	debug.SetGCPercent(gcPercent(live[0].Value.Uint64()))
}

// gcPercent is the percentage by which a heap of so many live bytes may grow.
func gcPercent(live uint64) int {
	if live == 0 {
		return maxGCPercent
	}
	return int(min(max(collectEvery*100/live, minGCPercent), maxGCPercent))
}

// afterEachGC calls f after each collection: when the collector finds an object
// that nobody holds it says so, and the next one is made.
func afterEachGC(f func()) {
	type canary struct{ _ [16]byte }
	var arm func()
	arm = func() {
		runtime.SetFinalizer(&canary{}, func(*canary) {
			f()
			arm()
		})
	}
	arm()
}
