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
// collected. A large one may grow by its own size, as usual, but not by more than
// garbageRoom and a part of it: what requests hold is bounded by
// --max-buffered-bytes, and garbage as large again would be memory beside that.
const (
	collectEvery = 12 << 20
	garbageRoom  = 16 << 20
	garbagePart  = 16
	maxGCPercent = 400
	minGCPercent = 5
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
	growth := max(collectEvery, min(live, garbageRoom+live/garbagePart))
	return int(min(max(growth*100/live, minGCPercent), maxGCPercent))
}

// limitMemory makes the collector work harder before the process holds more than
// bytes, unless GOMEMLIMIT says what the operator wants. It is a second line: requests
// are refused long before.
func limitMemory(bytes int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bytes)
	}
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
