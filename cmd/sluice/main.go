// Command sluice routes requests for large language models to a fleet of
// engines, with a bounded, fair gate in front of prefill.
//
// Exit codes: 0 success, 1 an invalid configuration or a failure, 2 an invalid command
// line, 130 and 143 a second signal ended "sluice serve" at once.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
)

const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	os.Exit(run(context.Background(), os.Args[1:], os.Environ(), os.Stdout, os.Stderr))
}

// run is main without the process: it returns the exit code.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) int {
	args = expandArgs(args)
	root := newRoot(environ, args)
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	printLines(stderr, "sluice: ", err.Error())
	var usage *usageError
	if errors.As(err, &usage) {
		printLines(stderr, "sluice: ", "see "+usage.command+" --help")
		return exitUsage
	}
	return exitCode(err)
}

// printLines writes text with the prefix before each of its lines, since
// several errors stand one a line.
func printLines(w io.Writer, prefix, text string) {
	for line := range strings.Lines(text) {
		_, _ = fmt.Fprintf(w, "%s%s\n", prefix, strings.TrimRight(line, "\n"))
	}
}

// usageError is the error of an invalid command line.
type usageError struct {
	command string
	err     error
}

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }
