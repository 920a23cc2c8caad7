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
// garbageRoom plus 1/garbagePart of it: --max-buffered-bytes bounds the memory of
// requests, and as much garbage again would come on top of that.
const (
	collectEvery = 12 << 20
	garbageRoom  = 16 << 20
	garbagePart  = 16
	maxGCPercent = 400
	minGCPercent = 5
)

// tuneGC sets the growth allowed by gcPercent now and after each collection, unless the
// operator has set GOGC.
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

// limitMemory sets the runtime's soft memory limit in bytes, unless the operator has set
// GOMEMLIMIT. It is a second safeguard: requests are refused long before.
func limitMemory(bytes int64) {
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(bytes)
	}
}

// afterEachGC calls f after each collection: an unreachable object has a finalizer that
// calls f and allocates the next such object.
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
