package main

import (
	"os"
	"strings"
	"testing"
)

const someTrace = `{"timestamp": 0, "input_length": 1024, "output_length": 10, "hash_ids": [1, 2]}
{"timestamp": 3000, "input_length": 1536, "output_length": 10, "hash_ids": [1, 2, 3]}
`

func TestReplay(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/trace", someTrace)
	code, stdout, stderr := sluice(t, nil, "replay", dir+"/trace", "--csv", dir+"/rows", "--html", dir+"/page", "--arms", "round_robin,gate_strict")
	if code != exitOK || stderr != "" || !strings.HasPrefix(stdout, "2 requests in 3s, 2560 prompt tokens, 5 blocks of 512 tokens\n\n") ||
		!strings.Contains(stdout, "\ngate_strict    40.0    40.0 ") {
		t.Errorf("exit %d, %q\n%s", code, stderr, stdout)
	}
	if rows, err := os.ReadFile(dir + "/rows"); err != nil || strings.Count(string(rows), "\n") != 5 {
		t.Errorf("%v: %s", err, rows)
	}
	if page, err := os.ReadFile(dir + "/page"); err != nil || !strings.Contains(string(page), "<tr><td>--workers</td><td>8</td></tr>") {
		t.Errorf("%v: %s", err, page)
	}
	code, stdout, stderr = sluice(t, nil, "replay", dir+"/trace", "--json")
	if code != exitOK || stderr != "" || !strings.HasPrefix(stdout, `{"arm":"round_robin","hit_rate":0,"ideal":0.4,`) {
		t.Errorf("exit %d, %q\n%s", code, stderr, stdout)
	}
}

func TestReplayThatCannot(t *testing.T) {
	dir := t.TempDir()
	write(t, dir+"/trace", someTrace)
	write(t, dir+"/bad", someTrace+"{}")
	write(t, dir+"/zipped", "\x1f\x8b\x08")
	if err := os.Symlink(dir+"/trace", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{}, exitUsage, "accepts 1 arg(s), received 0"},
		{[]string{"no-such-file"}, exitFailure, "open no-such-file: "},
		{[]string{dir + "/bad"}, exitFailure, "trace " + dir + "/bad: line 3: there is no timestamp\n"},
		{[]string{dir + "/zipped"}, exitFailure, "trace " + dir + "/zipped: it is compressed"},
		{[]string{dir + "/trace", "--workers=0"}, exitFailure, "--workers: 0 is not between"},
		{[]string{dir + "/trace", "--arms=x"}, exitFailure, `unknown arm "x": known are round_robin, `},
		{[]string{dir + "/trace", "--affinity-wait-secs=x"}, exitFailure, `flag --affinity-wait-secs: "x": must be a number of seconds`},
		{[]string{dir + "/trace", "--arm=x"}, exitUsage, "unknown flag: --arm; did you mean --arms?"},
		{[]string{dir + "/trace", "--csv=" + dir + "/none/rows"}, exitFailure, "open " + dir},
		{[]string{dir + "/trace", "--csv=" + dir + "/link"}, exitFailure, "TRACE and --csv are the same file, " + dir + "/link\n"},
		{[]string{dir + "/trace", "--csv=" + dir + "/new", "--html=" + dir + "//new"}, exitFailure, "--csv and --html are the same file, "},
	} {
		code, _, stderr := sluice(t, nil, append([]string{"replay"}, tc.args...)...)
		if code != tc.code || !strings.HasPrefix(stderr, "sluice: "+tc.want) {
			t.Errorf("%v: exit %d, %q", tc.args, code, stderr)
		}
	}
}

// What cannot be written makes the command fail, also if it is written at the end.
func TestReplayToAFullDisk(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	write(t, dir+"/trace", someTrace)
	for _, flag := range []string{"--csv", "--html"} {
		code, _, stderr := sluice(t, nil, "replay", dir+"/trace", "--arms=round_robin", flag, "/dev/full")
		if code != exitFailure || !strings.Contains(stderr, "no space left on device") {
			t.Errorf("%s: exit %d, %q", flag, code, stderr)
		}
	}
}
