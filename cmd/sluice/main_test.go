package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"

	"github.com/sluice-router/sluice/internal/config"
)

// sluice runs a command line and returns its exit code and what it printed.
func sluice(t *testing.T, environ []string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = run(t.Context(), args, environ, &out, &err)
	return code, out.String(), err.String()
}

func TestUsageErrors(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"srve", "sluice: unknown command \"srve\"; did you mean serve?\nsluice: see sluice --help\n"},
		{"serve --prot 1 --enable-mesh --router-selector app=x --port --enable-igw --queue-timeout-secs 3 --encode=x",
			"sluice: unknown flag: --prot; did you mean --port?\nsluice: unknown flag: --enable-mesh\nsluice: unknown flag: --router-selector\n" +
				"sluice: unknown flag: --queue-timeout-secs\nsluice: unknown flag: --encode\nsluice: see sluice serve --help\n"},
		{"serve --prot 1", "sluice: unknown flag: --prot; did you mean --port?\nsluice: see sluice serve --help\n"},
		{"serve now", "sluice: unexpected argument \"now\"\nsluice: see sluice serve --help\n"},
		{"serve --port", "sluice: flag needs an argument: --port\nsluice: see sluice serve --help\n"},
		{"check-config a b", "sluice: accepts at most 1 arg(s), received 2\nsluice: see sluice check-config --help\n"},
		{"check-config a --config b", "sluice: FILE and --config name the same thing; give one of them\nsluice: see sluice check-config --help\n"},
		{"version 1", "sluice: unexpected argument \"1\"\nsluice: see sluice version --help\n"},
		{"completion", "sluice: name a shell: bash, zsh or fish\nsluice: see sluice completion --help\n"},
		{"completion tcsh", "sluice: there is no completion for \"tcsh\"; name a shell: bash, zsh or fish\nsluice: see sluice completion --help\n"},
		{"completion bash zsh", "sluice: unexpected argument \"zsh\": name one shell\nsluice: see sluice completion --help\n"},
		{"sim --regualr 1", "sluice: unknown flag: --regualr; did you mean --regular?\nsluice: see sluice sim --help\n"},
		{"sim --policy random", "sluice: unknown flag: --policy\nsluice: see sluice sim --help\n"}, // it is one of serve's
		{"demo --kep", "sluice: unknown flag: --kep; did you mean --keep?\nsluice: see sluice demo --help\n"},
	} {
		code, stdout, stderr := sluice(t, nil, strings.Fields(tc.args)...)
		if code != exitUsage || stdout != "" || stderr != tc.want {
			t.Errorf("%s: exit %d, %q\n got %s\nwant %s", tc.args, code, stdout, stderr, tc.want)
		}
	}
}

// A value that is wrong is no command line that cannot be read, whoever reads it.
func TestInvalidOptionValues(t *testing.T) {
	for _, tc := range []struct{ args, want string }{
		{"serve --port x", "sluice: flag --port: server.port: \"x\": must be a whole number\n"},
		{"sim --prefill x", "sluice: flag --prefill: \"x\": must be an integer\n"},
		{"sim --prefill -1", "sluice: cannot simulate -1 prefill workers: the number must be 0 or more\n"},
		{"sim --regular=-2", "sluice: cannot simulate -2 regular workers: the number must be 0 or more\n"},
		{"sim --prefill 0 --decode 0", "sluice: cannot simulate a fleet of no workers: ask for prefill, decode or regular ones\n"},
	} {
		code, stdout, stderr := sluice(t, nil, strings.Fields(tc.args)...)
		if code != exitFailure || stdout != "" || stderr != tc.want {
			t.Errorf("%s: exit %d, %q\n got %s\nwant %s", tc.args, code, stdout, stderr, tc.want)
		}
	}
}

// The exit codes are an interface: supervisors and scripts go by them.
func TestExitCodesAreDocumented(t *testing.T) {
	b, err := os.ReadFile("../../docs/operations.md")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(b), "\n## Exit codes\n")
	text, _, _ = strings.Cut(text, "\n## ")
	for _, code := range []int{exitOK, exitFailure, exitUsage, killedError{syscall.SIGINT}.ExitCode(), killedError{syscall.SIGTERM}.ExitCode()} {
		if !strings.Contains(text, fmt.Sprintf("\n| %d |", code)) {
			t.Errorf("docs/operations.md does not tell of the exit code %d", code)
		}
	}
}

func TestConfigurationErrorsAreOneLineEach(t *testing.T) {
	for _, command := range []string{"serve", "check-config"} {
		code, stdout, stderr := sluice(t, []string{"SLUICE_PORT=tcp://10.0.0.1:1", "SLUICE_LOG_LEVEL=loud"},
			command, "--prefill", "http://a", "http://b", "--pd-disaggregation", "--policy", "bucket")
		want := `sluice: warning: environment SLUICE_PORT: ignored: its value "tcp://10.0.0.1:1" is one that Kubernetes sets for a service of that name (enableServiceLinks: false in the pod keeps it away)
sluice: environment SLUICE_LOG_LEVEL: log.log_level: "loud": must be one of debug, info, warn, error
sluice: flag --policy: routing.policy: "bucket": is not available yet; use one of random, round_robin, power_of_two, least_load, consistent_hashing, cache_aware, prefix_hash
sluice: flag --prefill: workers[0].bootstrap_port: "http://b": must be a bootstrap port or none; for another worker repeat --prefill
`
		if code != exitFailure || stdout != "" || stderr != want {
			t.Errorf("%s: exit %d, %q\n got %s\nwant %s", command, code, stdout, stderr, want)
		}
	}
}

func TestCheckConfig(t *testing.T) {
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	write(t, good, "fleet: {pd_disaggregation: true}\nauth: {api_key: topsecret}\nserver: {port: 31000}\nlog: {log_level: warn}\n")
	write(t, bad, "server: {port: x}\nlog: {level: warn}\n")

	code, stdout, stderr := sluice(t, []string{"SLUICE_LOG_LEVEL=error"}, "check-config", good, "--prefill", "http://p", "8998")
	if code != exitOK || stderr != "sluice: warning: no decode worker is known yet, so that nothing can be served: add one with POST /workers, or name it with --decode\n" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, line := range []string{
		"  port: 31000  # " + good + ":3\n",
		"  log_level: error  # environment SLUICE_LOG_LEVEL\n",
		"  api_key: [\"<hidden>\"]  # " + good + ":2\n",
		"workers:  # flag --prefill\n  - url: http://p\n    worker_type: prefill\n    bootstrap_port: 8998\n",
	} {
		if !strings.Contains(stdout, line) {
			t.Errorf("%q is missing in\n%s", line, stdout)
		}
	}
	if strings.Contains(stdout, "topsecret") {
		t.Errorf("the key is shown:\n%s", stdout)
	}

	code, stdout, stderr = sluice(t, nil, "check-config", bad)
	want := "sluice: " + bad + ":1: server.port: \"x\": must be a whole number\nsluice: " + bad + ":2: log.level: unknown key; did you mean log.log_level?\n"
	if code != exitFailure || stdout != "" || stderr != want {
		t.Errorf("exit %d, %q\n got %s\nwant %s", code, stdout, stderr, want)
	}
}

func TestHelpNamesEverything(t *testing.T) {
	code, stdout, stderr := sluice(t, nil)
	if code != exitOK || stderr != "" {
		t.Fatalf("exit %d: %s", code, stderr)
	}
	for _, command := range []string{"serve", "check-config", "demo", "sim", "version", "completion"} {
		if !strings.Contains(stdout, "\n  "+command+" ") {
			t.Errorf("%s is missing in\n%s", command, stdout)
		}
	}
	if strings.Contains(stdout, "-reference") {
		t.Errorf("a command of the build is shown:\n%s", stdout)
	}
	code, stdout, _ = sluice(t, nil, "serve", "--help")
	if code != exitOK || !strings.Contains(stdout, "--prefill URL [PORT|none]") || strings.Contains(stdout, "priority-scheduler") {
		t.Errorf("exit %d:\n%s", code, stdout)
	}
	// As docs/configuration.md has them.
	for flag, choices := range config.FlagChoices() {
		if !regexp.MustCompile(`(?m)^ +--` + flag + ` .* One of ` + strings.Join(choices, ", ") + `\.( \(default |$)`).MatchString(stdout) {
			t.Errorf("the help of --%s does not say which values there are: %s", flag, choices)
		}
	}
}

func TestCompletion(t *testing.T) {
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if code, stdout, stderr := sluice(t, nil, "completion", shell); code != exitOK || len(stdout) < 1000 || stderr != "" {
			t.Errorf("%s: exit %d, %d bytes: %s", shell, code, len(stdout), stderr)
		}
	}
	_, stdout, _ := sluice(t, nil, "__complete", "serve", "--policy", "")
	if !strings.HasPrefix(stdout, "random\nround_robin\npower_of_two\nleast_load\nconsistent_hashing\ncache_aware\nprefix_hash\n:4\n") {
		t.Errorf("completions of --policy: %s", stdout)
	}
	_, stdout, _ = sluice(t, nil, "__complete", "serve", "--prefill-q")
	if !strings.Contains(stdout, "--prefill-queue-size\t") || !strings.Contains(stdout, "--prefill-queue-timeout-secs\t") {
		t.Errorf("completions of --prefill-q: %s", stdout)
	}
}

func TestVersion(t *testing.T) {
	for _, args := range [][]string{{"version"}, {"--version"}} {
		code, stdout, stderr := sluice(t, nil, args...)
		if code != exitOK || !strings.HasPrefix(stdout, "sluice ") || strings.Count(stdout, "\n") != 1 || stderr != "" {
			t.Errorf("%s: exit %d, %q, %q", args, code, stdout, stderr)
		}
	}
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}
