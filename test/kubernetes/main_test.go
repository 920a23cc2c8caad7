//go:build kubernetes

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// What the tests run on: started once, in front of all of them.
var (
	cluster *Cluster
	node    *Node
	admin   *Client // of the first API server, which the tests leave alone
)

var given = flag.String("sluice", "", "binary to test instead of one that is built")

func TestMain(m *testing.M) {
	flag.Parse()
	os.Exit(runTests(m))
}

func runTests(m *testing.M) int {
	failed := func(err error) int {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	bin, err := FindBinaries(".")
	if errors.Is(err, ErrNotInstalled) {
		fmt.Println("the tests on a real kube-apiserver are left out:", err)
		return 0
	}
	if err != nil {
		return failed(err)
	}
	// The tests wait for processes most of the time, so more of them than there are
	// processors run side by side, unless somebody says otherwise.
	parallel := false
	flag.Visit(func(f *flag.Flag) { parallel = parallel || f.Name == "test.parallel" })
	if !parallel {
		if err := flag.Set("test.parallel", "6"); err != nil {
			return failed(err)
		}
	}
	dir, err := os.MkdirTemp("", "sluice-kubernetes-")
	if err != nil {
		return failed(err)
	}
	defer os.RemoveAll(dir)
	if bin.Sluice = *given; bin.Sluice != "" {
	} else if bin.Sluice, err = buildSluice(dir); err != nil {
		return failed(err)
	}
	if cluster, err = StartCluster(context.Background(), bin, dir); err != nil {
		return failed(err)
	}
	defer cluster.Close()
	admin = cluster.Server(0).Admin()
	if node, err = StartNode(context.Background(), cluster, admin); err != nil {
		return failed(err)
	}
	defer node.Close()
	return m.Run()
}

// patience is how long anything may take that takes no time on a machine with nothing
// else to do.
const patience = time.Minute

// eventually waits until check returns "", which it asks again and again, since what it
// asks is another process. What it returned last is in the failure.
func eventually(t testing.TB, what string, check func() string) {
	t.Helper()
	within(t, patience, what, check)
}

// within is eventually with a limit that is the point of the test.
func within(t testing.TB, limit time.Duration, what string, check func() string) {
	t.Helper()
	for end := time.Now().Add(limit); ; {
		last := check()
		if last == "" {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("%s: not within %s: %s", what, limit, last)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// must is for what has to succeed for the test to go on.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// clip shortens what a failure shows.
func clip(s string) string {
	if s = strings.TrimSpace(s); len(s) > 600 {
		return s[:600] + "…"
	}
	return s
}
