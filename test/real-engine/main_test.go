//go:build realengine

package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// What the tests run on: started once, in front of all of them.
var (
	home   Home
	binary string // the built sluice
	// one and two run whole requests, two with a small KV cache; prefill and decode are the
	// pair.
	one, two, prefill, decode *Engine
	// These are spoken to by gRPC, but for renderer. They run with -engines grpc, and of the
	// others one only.
	grpcOne, grpcPrefill, grpcDecode, renderer *Engine
)

// All at once would take more memory than many machines have.
var only = flag.String("engines", "all", "one: leave out what needs more than the engine that runs whole requests; grpc: the tests with engines by gRPC, and no others")

// slots are where the engines of a run are put.
func slots(which string) []**Engine {
	switch which {
	case "one":
		return []**Engine{&one}
	case "grpc":
		return []**Engine{&grpcOne, &grpcPrefill, &grpcDecode, &renderer, &one}
	}
	return []**Engine{&one, &two, &prefill, &decode}
}

var roleOf = map[**Engine]Role{&one: One, &two: Two, &prefill: Prefill, &decode: Decode,
	&grpcOne: GRPCOne, &grpcPrefill: GRPCPrefill, &grpcDecode: GRPCDecode, &renderer: Render}

// TestMain builds sluice and starts the engines. REAL_ENGINE_KEEP=1 leaves the
// engines running for the next time.
func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	failed := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	var err error
	if home, err = FindHome(); err != nil {
		return failed(err)
	}
	dir, err := os.MkdirTemp("", "sluice-real-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "sluice")
	if out, err := exec.Command("go", "build", "-o", binary, "../../cmd/sluice").CombinedOutput(); err != nil {
		return failed(fmt.Errorf("cannot build sluice: %w\n%s", err, out))
	}
	ctx, cancel := context.WithTimeout(context.Background(), startLimit)
	defer cancel()
	// The tests by gRPC have names of their own.
	choice := "test.skip"
	if *only == "grpc" {
		choice = "test.run"
	}
	if f := flag.Lookup(choice); f.Value.String() == "" {
		if err := f.Value.Set("^TestGRPC"); err != nil {
			return failed(err)
		}
	}
	var roles []Role
	for _, slot := range slots(*only) {
		roles = append(roles, roleOf[slot])
	}
	engines, err := Ensure(ctx, home, roles...)
	if err != nil {
		return failed(err)
	}
	for i, slot := range slots(*only) {
		*slot = engines[i]
	}
	if os.Getenv("REAL_ENGINE_KEEP") != "1" {
		defer func() {
			for _, slot := range slots(*only) {
				(*slot).Stop() // as they are now: tests start some anew
			}
		}()
	}
	if prefill != nil {
		if err := Warm(ctx, prefill, decode); err != nil {
			return failed(err)
		}
	}
	if grpcPrefill != nil {
		if err := WarmGRPC(ctx, grpcPrefill, grpcDecode); err != nil {
			return failed(err)
		}
	}
	code := m.Run()
	if err := report.write(code); err != nil {
		return failed(err)
	}
	return code
}

// needPair skips a test where there is no pair.
func needPair(t *testing.T) {
	t.Helper()
	if prefill == nil {
		t.Skip("without the pair")
	}
}
