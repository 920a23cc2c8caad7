package main

import (
	"runtime/debug"
	"strings"
	"testing"
)

// A build that does not tell its commit, such as one from a tarball, has "unknown"
// there: an empty label reads like a fault of the metric.
func TestCommit(t *testing.T) {
	const revision = "0123456789abcdef0123456789abcdef01234567"
	set := func(kv ...string) (list []debug.BuildSetting) {
		for i := 0; i < len(kv); i += 2 {
			list = append(list, debug.BuildSetting{Key: kv[i], Value: kv[i+1]})
		}
		return list
	}
	for want, settings := range map[string][]debug.BuildSetting{
		"unknown":                set("-compiler", "gc"),
		"0123456789ab":           set("vcs.revision", revision, "vcs.modified", "false"),
		"0123456789ab, modified": set("vcs.modified", "true", "vcs.revision", revision),
	} {
		if got := commitOf(settings); got != want {
			t.Errorf("%v: %q, want %q", settings, got, want)
		}
	}
	if got := commitOf(set("vcs.modified", "true")); got != "unknown" {
		t.Errorf("modified without a commit: %q", got)
	}
	if _, commit := built(); commit == "" || !strings.Contains(versionLine(), "commit "+commit) {
		t.Errorf("commit %q in %q", commit, versionLine())
	}
}
