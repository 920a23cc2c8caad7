//go:build realengine

package main

import (
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

var transcriptFile = flag.String("transcript", "", "file to write what was asked and counted to")

// transcript collects what the tests saw, for a reader who has no engine.
type transcript struct {
	mu sync.Mutex
	// guarded by mu
	lines []string
}

var report transcript

// say adds a line under the test's name.
func (r *transcript) say(t testing.TB, format string, args ...any) {
	t.Helper()
	line := fmt.Sprintf(format, args...)
	t.Log(line)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.lines = append(r.lines, fmt.Sprintf("%-28s %s", strings.TrimPrefix(t.Name(), "Test"), line))
}

// write writes the transcript where the flag says.
func (r *transcript) write(code int) error {
	if *transcriptFile == "" {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	verdict := "all tests passed"
	if code != 0 {
		verdict = "SOME TESTS FAILED"
	}
	commit := "unknown"
	if out, err := exec.Command("git", "describe", "--always", "--dirty", "--tags").Output(); err == nil {
		commit = strings.TrimSpace(string(out))
	}
	head := fmt.Sprintf("sluice against a real vLLM (CPU, tiny random model, NIXL over TCP)\n%s, commit %s: %s\n\n",
		time.Now().UTC().Format("2006-01-02 15:04 MST"), commit, verdict)
	return os.WriteFile(*transcriptFile, []byte(head+strings.Join(r.lines, "\n")+"\n"), 0o644)
}
