package e2e

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// binary is the built sluice.
var binary string

// full asks for the longer loads and all combinations of faults.
var full = os.Getenv("SLUICE_E2E_FULL") == "1"

// stack, if set, is the HTTP stack of every router that is started (--http-stack).
var stack = os.Getenv("SLUICE_E2E_STACK")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	if testing.Short() {
		fmt.Println("the tests on the built binary are left out with -short")
		return 0
	}
	// The tests wait for processes most of the time, so more of them than there
	// are processors run side by side, unless somebody says otherwise.
	parallel := false
	flag.Visit(func(f *flag.Flag) { parallel = parallel || f.Name == "test.parallel" })
	if !parallel {
		if err := flag.Set("test.parallel", "8"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
	}
	dir, err := os.MkdirTemp("", "sluice-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(dir)
	binary = filepath.Join(dir, "sluice")
	args := []string{"build", "-o", binary}
	if raceEnabled {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, "../../cmd/sluice")...).CombinedOutput()
	if err != nil {
		fmt.Fprintf(os.Stderr, "cannot build sluice: %v\n%s", err, out)
		return 1
	}
	stop := startSpawner()
	defer stop()
	return m.Run()
}

// patience is how long anything may take that takes no time on a machine with
// nothing else to do.
const patience = time.Minute

// soon is a bound on what must come without waiting for a time limit. It only
// tells "at once" from a wait for one of those, or for ever, so it is far above
// what a busy machine takes, and below the time limits of the tests that use it.
const soon = patience / 2

// eventually waits until check returns "", which it asks again and again, since
// what it asks is another process. What it returned last is in the failure.
func eventually(t testing.TB, what string, check func() string) {
	t.Helper()
	if last := poll(patience, check); last != "" {
		t.Fatalf("%s: not within %s: %s", what, patience, last)
	}
}

// within is eventually with a limit that is the point of the test.
func within(t testing.TB, limit time.Duration, what string, check func() string) {
	t.Helper()
	if last := poll(limit, check); last != "" {
		t.Fatalf("%s: not within %s: %s", what, limit, last)
	}
}

func poll(limit time.Duration, check func() string) string {
	end := time.Now().Add(limit)
	for {
		last := check()
		if last == "" || time.Now().After(end) {
			return last
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// clip shortens what a failure shows.
func clip(s string) string {
	s = strings.TrimSpace(s)
	if len(s) > 400 {
		return s[:400] + "…"
	}
	return s
}
