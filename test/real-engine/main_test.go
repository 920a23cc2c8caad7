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
)

var only = flag.String("engines", "all", "one: leave out what needs more than the engine that runs whole requests")

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
	all := []Role{One, Two, Prefill, Decode}
	roles := all
	if *only == string(One) {
		roles = roles[:1]
	}
	engines, err := Ensure(ctx, home, roles...)
	if err != nil {
		return failed(err)
	}
	if os.Getenv("REAL_ENGINE_KEEP") != "1" {
		defer func() {
			for _, e := range []*Engine{one, two, prefill, decode} {
				if e != nil {
					e.Stop()
				}
			}
		}()
	}
	one = engines[0]
	if len(engines) == len(all) {
		two, prefill, decode = engines[1], engines[2], engines[3]
		if err := Warm(ctx, prefill, decode); err != nil {
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
