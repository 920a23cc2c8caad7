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
	st.logf("profile of %s under %s (%s)", t.name, sc.name, data)
	// Kernels without a hardware counter sample late: time with interrupts off
	// shows as finish_task_switch or _raw_spin_unlock_irqrestore. So the first
	// list, what calls lead to, tells more than the second, what was running.
	if err := st.perfReport(ctx, "what calls lead to", data, 2, "[.]", "--children"); err != nil {
		return err
	}
	return st.perfReport(ctx, "what was running", data, 0.8, "", "--no-children")
}

// perfReport prints the symbols above so many percent on lines with only in
// them.
func (st *stage) perfReport(ctx context.Context, title, data string, percent float64, only string, args ...string) error {
	args = append([]string{"report", "-i", data, "--stdio", "-g", "none", "--sort", "symbol",
		"--percent-limit", strconv.FormatFloat(percent, 'f', 1, 64)}, args...)
	out, err := exec.CommandContext(ctx, "perf", args...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot read the profile: %w: %s", err, out)
	}
	st.logf(" %s:", title)
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, " -\n")
		if line != "" && !strings.HasPrefix(line, "#") && strings.Contains(line, only) {
			st.logf("  %s", line)
		}
	}
	return nil
}
