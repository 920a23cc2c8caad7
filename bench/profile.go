package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// profile loads a target once more, outside of all figures, while perf samples
// its process, and prints where the CPU time goes. The recording stays for
// "perf report -g".
func (st *stage) profile(ctx context.Context, sc scenario, t target, l load) error {
	if t.proc == nil {
		return nil
	}
	data := filepath.Join(st.perf, strings.ReplaceAll(sc.name, "/", "-")+".perf")
	done := make(chan error, 1)
	go func() {
		if err := sleep(ctx, l.warm); err != nil {
			done <- err
			return
		}
		out, err := exec.CommandContext(ctx, "perf", "record", "-q", "-g", "-F", "997", "-p", strconv.Itoa(t.proc.pid),
			"-o", data, "--", "sleep", strconv.FormatFloat(l.window.Seconds(), 'f', 2, 64)).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("cannot record a profile: %w: %s", err, out)
		}
		done <- err
	}()
	longer := l
	longer.window += l.warm // perf needs a moment to begin
	_, err := longer.run(ctx, t)
	if err = errors.Join(err, <-done); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "perf", "report", "-i", data, "--stdio", "--no-children", "-g", "none",
		"--sort", "symbol", "--percent-limit", "0.8").CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot read the profile: %w: %s", err, out)
	}
	st.logf("profile of %s under %s (%s):", t.name, sc.name, data)
	for line := range strings.Lines(string(out)) {
		if line = strings.TrimRight(line, " \n"); line != "" && !strings.HasPrefix(line, "#") {
			st.logf("  %s", line)
		}
	}
	return nil
}
